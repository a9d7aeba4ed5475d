// The weights of a directory in one file or several: which tensor goes where, by hand, and what the
// files and their index then hold, taken apart byte by byte.
// Seen red: a tensor that just fits moved to the next file; the size of the first file's tensors
// only in total_size.
#include <gmock/gmock.h>

#include "checkpoint/safetensors.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "core/error.hpp"
#include "support/raw_safetensors.hpp"

namespace coppice {
namespace {

using test::raw_file;
using test::TemporaryDirectory;
using testing::ElementsAre;
using Json = nlohmann::json;

// Four tensors of 4, 6, 20 and 2 bytes.
std::vector<SafetensorsSpec> specs() {
  return {{"z", DType::kF32, {1}},
          {"b", DType::kBF16, {3}},
          {"large", DType::kF32, {5}},
          {"a", DType::kF16, {1}}};
}

std::string bytes_of(const SafetensorsSpec& spec) {
  return std::string(static_cast<std::size_t>(spec.shape.numel() * size_of(spec.dtype)),
                     spec.name[0]);
}

void write_all(SafetensorsModelWriter& writer, const std::vector<SafetensorsSpec>& tensors) {
  for (const auto& spec : tensors) {
    const std::string bytes = bytes_of(spec);
    writer.write(spec.name, 0, std::as_bytes(std::span(bytes)));
  }
}

std::vector<std::string> names_in(const std::filesystem::path& path) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : raw_file(path)) names.push_back(name);
  return names;
}

TEST(SafetensorsModelWriter, FillsFilesUpToTheirSizeInTheOrderGiven) {
  const TemporaryDirectory directory;
  SafetensorsModelWriter writer(directory.path(), specs(), 10);
  EXPECT_EQ(writer.file_count(), 3);
  write_all(writer, specs());
  writer.commit();
  EXPECT_THAT(directory.names(),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  // 4 + 6 bytes just fit; 20 have a file of their own.
  EXPECT_THAT(names_in(directory / "model-00001-of-00003.safetensors"), ElementsAre("b", "z"));
  EXPECT_THAT(names_in(directory / "model-00002-of-00003.safetensors"), ElementsAre("large"));
  EXPECT_THAT(names_in(directory / "model-00003-of-00003.safetensors"), ElementsAre("a"));
  EXPECT_EQ(Json::parse(test::read_file(directory / "model.safetensors.index.json")),
            Json::parse(R"({"metadata": {"total_size": 32},
                            "weight_map": {"z": "model-00001-of-00003.safetensors",
                                           "b": "model-00001-of-00003.safetensors",
                                           "large": "model-00002-of-00003.safetensors",
                                           "a": "model-00003-of-00003.safetensors"}})"));
  const auto model = test::raw_model(directory.path());
  ASSERT_EQ(model.size(), 4u);
  for (const auto& spec : specs()) EXPECT_EQ(model.at(spec.name).bytes, bytes_of(spec));
  EXPECT_EQ(SafetensorsModel(directory.path()).tensors().size(), 4u);
}

TEST(SafetensorsModelWriter, WritesOneFileWithoutAnIndexWhereAllFits) {
  const TemporaryDirectory directory;
  SafetensorsModelWriter writer(directory.path(), specs(), 32);
  write_all(writer, specs());
  writer.commit();
  EXPECT_THAT(directory.names(), ElementsAre("model.safetensors"));
  EXPECT_THAT(names_in(directory / "model.safetensors"), ElementsAre("a", "b", "large", "z"));
}

TEST(SafetensorsModelWriter, TakesTensorsOfAnyOrderAndWithoutElements) {
  const TemporaryDirectory directory;
  auto tensors = specs();
  tensors.push_back({"none", DType::kF32, {0, 3}});
  SafetensorsModelWriter writer(directory.path(), tensors, 1);
  std::ranges::reverse(tensors);
  write_all(writer, tensors);
  writer.commit();
  // "none" has no byte and stays with what is before it only where that leaves room: 2 > 1.
  EXPECT_EQ(writer.file_count(), 5);
  EXPECT_EQ(test::raw_model(directory.path()).at("none").shape, Json::parse("[0, 3]"));
  EXPECT_EQ(test::raw_model(directory.path()).size(), 5u);
}

TEST(SafetensorsModelWriter, RefusesToCommitHalfATensor) {
  const TemporaryDirectory directory;
  {
    SafetensorsModelWriter writer(directory.path(), specs(), 10);
    writer.write("large", 0, std::as_bytes(std::span("abc")));
    EXPECT_THROW(writer.commit(), ContractError);
    EXPECT_THROW(writer.write("other", 0, {}), ContractError);
  }
  EXPECT_TRUE(directory.names().empty());
}

}  // namespace
}  // namespace coppice
