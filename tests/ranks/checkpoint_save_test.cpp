// One file from several ranks: what is in it, whoever wrote it, and what a failure on one rank
// leaves. The one-rank file is the oracle of content; its own layout is checked elsewhere.
// Seen red: no sum of the checksums over ranks; column offset left out of a rectangle's place; no
// check that each element has one writer.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/example_state.hpp"
#include "core/error.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "ranks/rank_state.hpp"
#include "ranks/ranks_session.hpp"
#include "ranks/shared_directory.hpp"

namespace coppice {
namespace {

using test::example_header;
using test::RankState;
using test::read_file;
using test::SharedDirectory;
using test::state_of;
using test::TestContext;
using testing::HasSubstr;

const std::pair<const char*, test::Cut> kCuts[] = {{"rows or columns", test::rows_or_columns},
                                                   {"grid", test::grid},
                                                   {"two bands", test::two_bands},
                                                   {"all on last", test::all_on_last},
                                                   {"dealt", test::dealt}};

class CheckpointSave : public testing::Test {
 protected:
  RankState mine(DType dtype, const test::Cut& cut, test::Filled filled = test::Filled::kValues) {
    return state_of(context_, dtype, cut, world_->rank(), world_->size(), filled);
  }
  // Message of the error that `body` must throw: the same on every rank.
  template <class Expected, class Body>
  std::string common_error(const Body& body) {
    std::string message = "no error";
    try {
      body();
    } catch (const Expected& error) {
      message = error.what();
    }
    EXPECT_EQ(test::ranks_session().size(), world_->size());
    EXPECT_THAT(all_gather_texts(*world_, message), testing::Each(message));
    return message;
  }

  std::unique_ptr<Communicator> world_ = test::ranks_session().split(0, "world", {.seconds = 60});
  SharedDirectory directory_{*world_};
  TestContext context_{1};
};

// Everything a reader can see of two files is the same.
void expect_same_content(const std::filesystem::path& a, const std::filesystem::path& b) {
  const CheckpointReader one(a), other(b);
  EXPECT_EQ(one.header().trainer_json, other.header().trainer_json);
  EXPECT_EQ(one.header().run_config_textproto, other.header().run_config_textproto);
  EXPECT_EQ(one.header().model_config_json, other.header().model_config_json);
  EXPECT_EQ(one.header().step, other.header().step);
  EXPECT_EQ(one.header().optimizer_step, other.header().optimizer_step);
  ASSERT_EQ(one.header().trainer_arrays.size(), other.header().trainer_arrays.size());
  EXPECT_EQ(one.header().trainer_arrays[1].values, other.header().trainer_arrays[1].values);
  ASSERT_EQ(one.header().tokenizer.size(), other.header().tokenizer.size());
  EXPECT_EQ(one.header().tokenizer[1].bytes, other.header().tokenizer[1].bytes);
  ASSERT_EQ(one.tensors().size(), other.tensors().size());
  for (std::size_t i = 0; i < one.tensors().size(); ++i) {
    const StoredTensor &first = one.tensors()[i], &second = other.tensors()[i];
    EXPECT_EQ(first.dataset, second.dataset);
    EXPECT_EQ(first.dtype, second.dtype) << first.dataset;
    EXPECT_EQ(first.shape, second.shape) << first.dataset;
    ASSERT_TRUE(first.checksum && second.checksum) << first.dataset;
    EXPECT_EQ(*first.checksum, *second.checksum) << first.dataset;
    std::vector<std::byte> values(
        static_cast<std::size_t>(first.shape.numel() * size_of(first.dtype)));
    auto others = values;
    one.read_stored(first, 0, first.shape[0], values.data());
    other.read_stored(second, 0, second.shape[0], others.data());
    EXPECT_TRUE(values == others) << first.dataset;
  }
}

TEST_F(CheckpointSave, GivesTheFileThatOneRankWouldWriteWhateverTheCut) {
  for (const auto& [dtype, keep] : {std::pair(DType::kF32, false), std::pair(DType::kF64, true),
                                    std::pair(DType::kF64, false)}) {
    for (const auto& [name, cut] : kCuts) {
      SCOPED_TRACE(name);
      const RankState state = mine(dtype, cut);
      save_checkpoint(directory_ / "all.h5", example_header(), state.list, keep, *world_);
      EXPECT_EQ(directory_.names().find("coppice-part"), std::string::npos);
      if (world_->rank() == 0) {
        const RankState whole = state_of(context_, dtype, test::all_on_last, 0, 1);
        save_checkpoint(directory_ / "one.h5", example_header(), whole.list, keep);
        expect_same_content(directory_ / "all.h5", directory_ / "one.h5");
        CheckpointReader(directory_ / "all.h5").verify();
      }
      directory_.wait_for_all();
    }
  }
}

// Pieces above the block in which values are rounded, with rows that are cut.
TEST_F(CheckpointSave, RoundsBlockByBlockIntoTheRightPlaces) {
  const Shape shape{1601, 2003};
  Tensor whole = context_.random(DType::kF64, shape, "w");
  const Shard shard = test::part_along(shape, 1, world_->rank(), world_->size());
  RankState state;
  state.add("/parameters/w", shard, test::cut_out(context_, whole, shard));
  save_checkpoint(directory_ / "all.h5", example_header(), state.list, false, *world_);
  if (world_->rank() != 0) return;
  const StateTensor list[] = {{"/parameters/w", Shard::whole(shape), whole}};
  save_checkpoint(directory_ / "one.h5", example_header(), list);
  expect_same_content(directory_ / "all.h5", directory_ / "one.h5");
}

TEST_F(CheckpointSave, TakesTheHeaderFromRankZero) {
  CheckpointHeader header = example_header();
  if (world_->rank() != 0) {
    header = CheckpointHeader();
    header.step = 99;
    header.trainer_json = "other";
  }
  save_checkpoint(directory_ / "a.h5", header, mine(DType::kF32, test::grid).list, false, *world_);
  const CheckpointReader reader(directory_ / "a.h5", *world_);
  EXPECT_EQ(reader.header().kind, CheckpointKind::kCheckpoint);
  EXPECT_EQ(reader.header().step, 12);
  EXPECT_EQ(reader.header().trainer_json, example_header().trainer_json);
}

// The last rank fails in the middle, with some tensors written by all.
TEST_F(CheckpointSave, OneRankThatFailsIsAnErrorOnAllAndLeavesTheOldFile) {
  save_checkpoint(directory_ / "a.h5", example_header(), mine(DType::kF32, test::grid).list, false,
                  *world_);
  const std::string before = read_file(directory_ / "a.h5");
  RankState state = mine(DType::kF32, test::two_bands);
  if (world_->rank() == world_->size() - 1) {
    for (auto& tensor : state.list)
      if (tensor.dataset == "/parameters/one_column.weight") tensor.local = TensorView();
  }
  const std::string message = common_error<ContractError>(
      [&] { save_checkpoint(directory_ / "a.h5", example_header(), state.list, false, *world_); });
  EXPECT_THAT(message, HasSubstr("/parameters/one_column.weight"));
  const std::string named = fmt::format("rank {}: ", world_->size() - 1);
  EXPECT_THAT(message, HasSubstr(world_->size() == 1 ? "" : named));
  EXPECT_EQ(directory_.names(), "a.h5 ");
  EXPECT_EQ(read_file(directory_ / "a.h5"), before);
}

// The disk "fills up" for one rank: a limit on the size of files it writes.
TEST_F(CheckpointSave, AFullDiskOnOneRankIsAnErrorOnAllAndTheNextSaveWorks) {
  const RankState state = mine(DType::kF32, test::two_bands);
  save_checkpoint(directory_ / "a.h5", example_header(), state.list, false, *world_);
  const std::string before = read_file(directory_ / "a.h5");
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int full : {0, world_->size() - 1}) {
    for (const rlim_t limit : {rlim_t{0}, rlim_t{4096}, rlim_t{64'000}}) {
      const rlimit size{limit, RLIM_INFINITY}, none{RLIM_INFINITY, RLIM_INFINITY};
      if (world_->rank() == full) setrlimit(RLIMIT_FSIZE, &size);
      std::string message = "no error";
      try {
        save_checkpoint(directory_ / "a.h5", example_header(), state.list, false, *world_);
      } catch (const IoError& error) {
        message = error.what();
      }
      setrlimit(RLIMIT_FSIZE, &none);
      EXPECT_THAT(message, HasSubstr("File too large"));
      EXPECT_THAT(message, HasSubstr("a.h5: "));
      EXPECT_THAT(all_gather_texts(*world_, message), testing::Each(message));
      EXPECT_EQ(directory_.names(), "a.h5 ");
      EXPECT_EQ(read_file(directory_ / "a.h5"), before);
    }
  }
  save_checkpoint(directory_ / "b.h5", example_header(), state.list, false, *world_);
  CheckpointReader(directory_ / "b.h5", *world_).verify();
}

TEST_F(CheckpointSave, APlaceThatCannotBeWrittenIsNamedOnAll) {
  const std::string message = common_error<IoError>([&] {
    save_checkpoint(directory_ / "missing/a.h5", example_header(),
                    mine(DType::kF32, test::grid).list, false, *world_);
  });
  EXPECT_THAT(message, HasSubstr("missing/a.h5: cannot be created: No such file"));
}

TEST_F(CheckpointSave, RefusesElementsThatNoRankOrTwoRanksWrite) {
  const auto refused = [&](const Shard& shard) {
    RankState state;
    state.add("/parameters/w", shard, context_.zeros(DType::kF32, shard.local_shape));
    const std::string message = common_error<ContractError>([&] {
      save_checkpoint(directory_ / "a.h5", example_header(), state.list, false, *world_);
    });
    EXPECT_EQ(directory_.names(), "");
    return message;
  };
  const std::int64_t rank = world_->rank(), ranks = world_->size();
  const Shape shape{2 * ranks, 3};
  EXPECT_THAT(refused(Shard::along(shape, 0, 2 * rank, 1)),
              HasSubstr(fmt::format("{} of {} elements are written", 3 * ranks, 6 * ranks)));
  if (ranks == 1) return;
  // As many elements as there are, but the last two ranks have the same rows.
  EXPECT_THAT(refused(Shard::along(shape, 0, 2 * std::min(rank, ranks - 2), 2)),
              HasSubstr("would write the same elements"));
  const Shape other = rank == 0 ? shape : Shape{2 * ranks, 4};
  EXPECT_THAT(refused(Shard::along(other, 0, 2 * rank, 2)), HasSubstr("a rank before it"));
}

}  // namespace
}  // namespace coppice
