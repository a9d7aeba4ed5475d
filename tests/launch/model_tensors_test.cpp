// The oracle is what transformers saved: the tensors of the golden models.
// Seen red: q/k norms of num_attention_heads * head_dim; head kept though tied.
#include "launch/model_tensors.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "checkpoint/safetensors.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

TEST(ModelTensors, AreThoseThatTransformersSaves) {
  int models = 0;
  const auto golden = std::filesystem::path(COPPICE_SOURCE_DIR) / "tests" / "golden";
  for (const auto& directory : std::filesystem::directory_iterator(golden)) {
    if (!directory.is_directory()) continue;
    const std::string place = directory.path().filename().string();
    const auto config =
        ModelConfig::parse(test::read_file(directory.path() / "config.json"), place);
    std::map<std::string, std::string> expected, ours;
    const SafetensorsModel model(directory.path());
    for (const auto& [name, source] : model.tensors()) {
      expected[name] = source.entry->shape_string();
    }
    for (const auto& [name, shape] : tensors_of(config)) ours[name] = shape.to_string();
    EXPECT_EQ(ours, expected) << place;
    ++models;
  }
  EXPECT_GE(models, 8);
}

}  // namespace
}  // namespace coppice
