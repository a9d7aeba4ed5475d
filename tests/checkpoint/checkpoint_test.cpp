// Round trips, refusals and crash safety of one file. What is in the file is checked through the
// HDF5 library itself in checkpoint_layout_test.cpp. Seen red: conversion block off by one row; no
// comparison of shapes; temporary file not removed.
#include "checkpoint/checkpoint.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "checkpoint/example_state.hpp"
#include "core/convert.hpp"
#include "core/error.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::example_header;
using test::example_state;
using test::read_file;
using test::TemporaryDirectory;
using test::TestContext;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST(Checkpoint, ComesBackBitForBit) {
  for (const auto& [dtype, keep] : {std::pair(DType::kF32, false), std::pair(DType::kF64, true)}) {
    const TemporaryDirectory directory;
    TestContext context;
    const auto saved = example_state(context, dtype);
    save_checkpoint(directory / "a.h5", example_header(), saved.list, keep);
    EXPECT_THAT(directory.names(), ElementsAre("a.h5"));
    const CheckpointReader reader(directory / "a.h5");
    auto loaded = example_state(context, dtype, false);
    reader.read(loaded.list);
    for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
      EXPECT_TRUE(bit_equal(saved.tensors[i], loaded.tensors[i])) << saved.list[i].dataset;
    }
    const auto& header = reader.header();
    const auto expected = example_header();
    EXPECT_EQ(header.kind, CheckpointKind::kCheckpoint);
    EXPECT_EQ(header.step, 12);
    EXPECT_EQ(header.optimizer_step, 11);
    EXPECT_EQ(header.program_version, "9.8.7");
    EXPECT_EQ(header.model_config_json, expected.model_config_json);
    EXPECT_EQ(header.run_config_textproto, expected.run_config_textproto);
    EXPECT_EQ(header.trainer_json, expected.trainer_json);
    ASSERT_EQ(header.trainer_arrays.size(), 2u);
    EXPECT_EQ(header.trainer_arrays[0].name, "none");
    EXPECT_TRUE(header.trainer_arrays[0].values.empty());
    EXPECT_EQ(header.trainer_arrays[1].name, "old_logprobs");
    EXPECT_EQ(header.trainer_arrays[1].values, expected.trainer_arrays[0].values);
    ASSERT_EQ(header.tokenizer.size(), 2u);
    EXPECT_EQ(header.tokenizer[0].name, "empty.json");
    EXPECT_EQ(header.tokenizer[0].bytes, "");
    EXPECT_EQ(header.tokenizer[1].bytes, expected.tokenizer[0].bytes);
    EXPECT_TRUE(reader.notices().empty());
  }
}

TEST(Checkpoint, HoldsDoubleStateInSinglePrecisionUnlessTold) {
  const TemporaryDirectory directory;
  TestContext context;
  auto saved = example_state(context, DType::kF64);
  save_checkpoint(directory / "a.h5", example_header(), saved.list);
  const CheckpointReader reader(directory / "a.h5");
  for (const auto& tensor : reader.tensors()) {
    EXPECT_EQ(tensor.dtype, tensor.dataset.starts_with("/trainer/") ? DType::kF64 : DType::kF32);
  }
  auto loaded = example_state(context, DType::kF64, false);
  reader.read(loaded.list);
  for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
    const auto wide = test::values_of(saved.tensors[i]),
               narrow = test::values_of(loaded.tensors[i]);
    for (std::size_t j = 0; j < wide.size(); ++j) {
      EXPECT_EQ(narrow[j], static_cast<double>(static_cast<float>(wide[j])));
    }
  }
}

// Larger than one conversion block, so that block borders are crossed.
TEST(Checkpoint, ModelsOfEveryTypeLoadInEitherPrecision) {
  const TemporaryDirectory directory;
  TestContext context;
  const Shape shape{2500, 1001};
  const Tensor values = context.random(DType::kF64, shape, "values");
  for (DType stored : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    {
      CheckpointWriter writer(directory / "m.h5", example_header(CheckpointKind::kModel));
      writer.write("/parameters/w", stored, Shard::whole(shape), values);
      writer.commit();
    }
    const CheckpointReader reader(directory / "m.h5");
    ASSERT_EQ(reader.tensors().size(), 1u);
    EXPECT_EQ(reader.tensors()[0].dtype, stored);
    const auto count = static_cast<std::size_t>(shape.numel());
    std::vector<std::byte> in_file(count * static_cast<std::size_t>(size_of(stored)));
    convert_elements(DType::kF64, values.view().bytes(), stored, in_file.data(), shape.numel());
    for (DType compute : {DType::kF32, DType::kF64}) {
      Tensor loaded = context.filled(compute, shape, 7.0);
      const StateTensor wanted[] = {{"/parameters/w", Shard::whole(shape), loaded}};
      reader.read(wanted);
      std::vector<std::byte> expected(count * static_cast<std::size_t>(size_of(compute)));
      convert_elements(stored, in_file.data(), compute, expected.data(), shape.numel());
      EXPECT_EQ(std::memcmp(expected.data(), loaded.view().bytes(), expected.size()), 0)
          << name_of(stored) << " as " << name_of(compute);
    }
  }
}

TEST(Checkpoint, WrittenInRectanglesIsTheSameFileAndReadsInOthers) {
  const TemporaryDirectory directory;
  TestContext context;
  const Shape shape{6, 4};
  const Tensor whole = context.random(DType::kF32, shape, "whole");
  const auto values = test::values_of(whole);
  const auto part = [&](std::int64_t r, std::int64_t c, std::int64_t rows, std::int64_t columns) {
    std::vector<double> picked;
    for (std::int64_t i = r; i < r + rows; ++i) {
      for (std::int64_t j = c; j < c + columns; ++j) {
        picked.push_back(values[static_cast<std::size_t>(i * 4 + j)]);
      }
    }
    return picked;
  };
  const auto write = [&](const std::filesystem::path& path,
                         const std::vector<std::array<std::int64_t, 4>>& rectangles) {
    CheckpointWriter writer(path, example_header(CheckpointKind::kModel));
    for (const auto& [r, c, rows, columns] : rectangles) {
      const Tensor piece = context.from(DType::kF32, {rows, columns}, part(r, c, rows, columns));
      writer.write("/parameters/w", DType::kF32, {shape, {r, c}, {rows, columns}}, piece);
    }
    writer.commit();
  };
  write(directory / "one.h5", {{0, 0, 6, 4}});
  write(directory / "four.h5", {{3, 0, 3, 3}, {0, 0, 3, 3}, {3, 3, 3, 1}, {0, 3, 3, 1}});
  const CheckpointReader one(directory / "one.h5"), four(directory / "four.h5");
  ASSERT_TRUE(one.tensors()[0].checksum.has_value());
  EXPECT_EQ(one.tensors()[0].checksum, four.tensors()[0].checksum);
  Tensor piece = context.zeros(DType::kF64, {2, 3});
  const StateTensor wanted[] = {{"/parameters/w", {shape, {2, 1}, {2, 3}}, piece}};
  four.read(wanted);
  EXPECT_EQ(test::values_of(piece), part(2, 1, 2, 3));
}

TEST(Checkpoint, RefusesToCommitHalfATensor) {
  const TemporaryDirectory directory;
  TestContext context;
  {
    CheckpointWriter writer(directory / "m.h5", example_header(CheckpointKind::kModel));
    const Tensor half = context.zeros(DType::kF32, {3, 4});
    writer.write("/parameters/w", DType::kF32, {{6, 4}, {0, 0}, {3, 4}}, half);
    EXPECT_THROW(writer.commit(), ContractError);
  }
  EXPECT_TRUE(directory.names().empty());
}

TEST(Checkpoint, ReportsEveryDatasetThatDoesNotFitAndLoadsNothing) {
  const TemporaryDirectory directory;
  TestContext context;
  save_checkpoint(directory / "a.h5", example_header(), example_state(context, DType::kF32).list);
  const CheckpointReader reader(directory / "a.h5");
  auto wanted = example_state(context, DType::kF32, false);
  wanted.list.erase(wanted.list.begin() + 1);  // the file's embedding is not wanted
  wanted.add("/parameters/model.missing.weight", context.filled(DType::kF32, {2}, 1.0));
  Tensor other = context.filled(DType::kF32, {3, 7}, 1.0);
  wanted.list[2] = {"/optimizer/exp_avg/model.embed_tokens.weight", Shard::whole({3, 7}), other};
  try {
    reader.read(wanted.list);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.problems(),
                UnorderedElementsAre(
                    HasSubstr("/parameters/model.embed_tokens.weight is not part of this model"),
                    HasSubstr("/parameters/model.missing.weight is missing"),
                    HasSubstr("/optimizer/exp_avg/model.embed_tokens.weight has shape [7, 3]; the "
                              "model needs [3, 7]")));
    for (const auto& line : error.problems()) EXPECT_THAT(line, HasSubstr("a.h5"));
  }
  for (const auto& tensor : wanted.tensors) {
    for (double value : test::values_of(tensor)) EXPECT_EQ(value, 1.0);
  }
}

// The weights of a checkpoint alone are a model: its moments are then nobody's business.
TEST(Checkpoint, GivesItsWeightsAlone) {
  const TemporaryDirectory directory;
  TestContext context;
  const auto saved = example_state(context, DType::kF32);
  save_checkpoint(directory / "a.h5", example_header(), saved.list);
  auto wanted = example_state(context, DType::kF64, false);
  wanted.list.resize(2);
  CheckpointReader(directory / "a.h5").read(wanted.list);
  EXPECT_EQ(test::values_of(saved.tensors[1]), test::values_of(wanted.tensors[1]));
}

TEST(Checkpoint, RefusesWhatIsNone) {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& name) {
    try {
      CheckpointReader reader(directory / name);
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused("missing.h5"), HasSubstr("no file of this name"));
  test::write_file(directory / "text.h5", "hello");
  EXPECT_THAT(refused("text.h5"), HasSubstr("no HDF5 file"));
  test::write_file(directory / "empty.h5", "");
  EXPECT_THAT(refused("empty.h5"), HasSubstr("no HDF5 file"));
  std::filesystem::create_directory(directory / "dir.h5");
  EXPECT_THAT(refused("dir.h5"), HasSubstr("no file of this name"));
}

// The disk "fills up" in the middle: a limit on file sizes in a child process.
TEST(Checkpoint, LeavesTheOldFileWhenTheDiskIsFull) {
  const TemporaryDirectory directory;
  TestContext context;
  const auto saved = example_state(context, DType::kF32);
  save_checkpoint(directory / "a.h5", example_header(), saved.list);
  const std::string before = read_file(directory / "a.h5");
  for (const rlim_t limit : {rlim_t{0}, rlim_t{4096}, rlim_t{100'000}, rlim_t{1'000'000}}) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit size{limit, RLIM_INFINITY}, none{RLIM_INFINITY, RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &size);
      int status = 1;
      try {
        std::vector<float> big(1'000'000, 1.0f);
        const auto view = host_view(big.data(), Shape{1'000'000});
        const StateTensor list[] = {{"/parameters/big", Shard::whole(view.shape()), view}};
        save_checkpoint(directory / "a.h5", example_header(), list);
      } catch (const IoError& error) {
        status = std::strstr(error.what(), "a.h5: ") != nullptr ? 42 : 2;
      } catch (...) {
        status = 3;
      }
      // The process goes on: with room again, the next save and load are whole.
      setrlimit(RLIMIT_FSIZE, &none);
      save_checkpoint(directory / "b.h5", example_header(), saved.list);
      CheckpointReader(directory / "b.h5").verify();
      std::filesystem::remove(directory / "b.h5");
      exit(status);  // with everything that the library does at the end
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << limit;
    EXPECT_EQ(WEXITSTATUS(status), 42) << limit;
    EXPECT_THAT(directory.names(), ElementsAre("a.h5")) << limit;
    EXPECT_EQ(read_file(directory / "a.h5"), before) << limit;
  }
}

TEST(Checkpoint, NamesAReadOnlyPlace) {
  TestContext context;
  try {
    save_checkpoint("/proc/a.h5", example_header(), example_state(context, DType::kF32).list);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/proc/a.h5"));
  }
}

}  // namespace
}  // namespace coppice
