// The claim on a real model and real text: SmolLM2-135M in f32, a recorded group with its prompt
// once and with its prompt repeated. P=160, R=32, G=6 is what PyTorch was measured on; the bounds
// are those of docs/testing.md.
#include <gtest/gtest.h>

#include "golden/golden_case.hpp"
#include "model/pass_difference.hpp"
#include "model/tiny_models.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using namespace test;

const fs::path kSource = COPPICE_SOURCE_DIR;

// Responses of at least 32 tokens, cut there; the last 160 tokens of the first such group's prompt.
TinyGroup recorded_group() {
  TinyGroup made;
  for (const Group& group : read_rollouts(kSource / "data/smollm2_arithmetic.jsonl", {})) {
    if (made.prompt.empty()) {
      made.prompt.assign(group.prompt_ids.end() - 160, group.prompt_ids.end());
    }
    for (const Response& response : group.responses) {
      if (response.ids.size() < 32 || made.responses.size() == 6) continue;
      made.responses.push_back({Tokens(response.ids.begin(), response.ids.begin() + 32)});
    }
  }
  return made;
}

// Seen red with positions that run on over siblings.
TEST(SmolLM2, GroupedEqualsRepeatedInF32) {
  const fs::path directory = kSource / ".cache/smollm2-hf";
  ASSERT_TRUE(fs::exists(directory / "config.json"))
      << "make the model first: \"$(tools/venv light)/bin/python\" tools/smollm2_to_hf.py --out "
         ".cache/smollm2-hf (launch/test does)";
  const ModelConfig config =
      ModelConfig::parse(read_file(directory / "config.json"), "config.json");
  TinyModel model(config, DType::kF32, 2);
  model.set_weights(safetensors_values(directory, "model.safetensors", ""));

  const TinyGroup group = recorded_group();
  ASSERT_EQ(group.responses.size(), 6U);
  const PackedBatch once = grouped({group}), many = repeated({group});
  ASSERT_EQ(once.rows(), 160 + 6 * 32);
  ASSERT_EQ(many.rows(), 6 * (160 + 32));
  const PassDifference found = difference(run_pass(model, once), run_pass(model, many));
  std::printf("log-probs: largest %.2e, mean %.2e; gradients: worst parameter %.2e, whole %.2e\n",
              found.largest_logprob, found.mean_logprob, found.worst_gradient,
              found.whole_gradient);
  EXPECT_LE(found.largest_logprob, 1e-4);
  EXPECT_LE(found.mean_logprob, 1e-5);
  EXPECT_LE(found.worst_gradient, 1e-4);
  EXPECT_LE(found.whole_gradient, 3e-5);
}

}  // namespace
}  // namespace coppice
