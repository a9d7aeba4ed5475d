// The whole program against transformers: every golden case goes through import, score and train as
// a user would run them, grouped and repeated, in double precision.
#include <gmock/gmock.h>

#include <cmath>

#include "end_to_end/program.hpp"
#include "end_to_end/run_files.hpp"

namespace coppice::test {
namespace {

struct GoldenRun {
  std::string name, sharing;
};
std::ostream& operator<<(std::ostream& out, const GoldenRun& run) {
  return out << run.name << "/" << run.sharing;
}

class Golden : public testing::TestWithParam<GoldenRun> {
 protected:
  Golden() : golden_(golden_case(GetParam().name)) {
    const auto outcome = run_program({"import", "--hf", golden_, "--out", dir_ / "model.h5"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    expected_ = nlohmann::json::parse(read_file(golden_ + "/expected.json"));
  }
  TemporaryDirectory dir_;
  std::string golden_;
  nlohmann::json expected_;
};

// Seen red with: a response's first token predicted by the row before the prompt's last one;
// positions that run on over the packed rows (grouped).
TEST_P(Golden, ScoresEqualTransformers) {
  const auto outcome = run_program({"score", "--checkpoint", dir_ / "model.h5", "--rollouts",
                                    golden_ + "/rollouts.jsonl", "--out", dir_ / "scores.jsonl",
                                    "--precision", "f64", "--sharing", GetParam().sharing});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  Tensors logprobs, entropies;
  const auto groups = json_lines(dir_ / "scores.jsonl");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& responses = groups[g].at("responses");
    for (std::size_t r = 0; r < responses.size(); ++r) {
      const std::string name = std::to_string(g) + "." + std::to_string(r);
      logprobs[name] = responses[r].at("logprobs").get<std::vector<double>>();
      entropies[name] = responses[r].at("entropies").get<std::vector<double>>();
    }
  }
  const std::string golden = golden_ + "/expected.safetensors";
  const Tensors golden_logprobs = safetensors_values(golden, "logprobs.");
  const Tensors golden_entropies = safetensors_values(golden, "entropies.");
  const auto norm = [](const Tensors& tensors) {
    double squares = 0;
    for (const auto& [name, values] : tensors)
      for (const double value : values) squares += value * value;
    return std::sqrt(squares);
  };
  EXPECT_LE(distance(logprobs, golden_logprobs), 1e-12 * norm(golden_logprobs));
  EXPECT_LE(distance(entropies, golden_entropies), 1e-12 * norm(golden_entropies));
}

// Seen red with: AdamW's decay on norms too; the KL gradient's sign; advantages divided by the
// biased standard deviation; no clipping.
TEST_P(Golden, ThreeTrainingStepsEqualTransformers) {
  std::string upper = GetParam().sharing;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  const auto outcome = run_program(
      {"train", "--config", golden_ + "/run.textproto", "--set",
       "run_dir=" + (dir_ / "run").string(), "--set",
       "model.checkpoint=" + (dir_ / "model.h5").string(), "--set",
       "data.rollouts=" + golden_ + "/rollouts.jsonl", "--set", "numerics.precision=F64", "--set",
       "checkpoint.keep_precision=true", "--set", "batching.sharing=" + upper});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto steps = json_lines(dir_ / "run/metrics.jsonl");
  ASSERT_EQ(steps.size(), expected_.at("steps").size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& expected = expected_["steps"][i];
    for (const auto& [key, value] : expected.items()) {
      if (value.is_object()) continue;  // grouped and repeated: below
      ASSERT_TRUE(steps[i].contains(key)) << key;
      const double want = value.get<double>(), got = steps[i][key].get<double>();
      EXPECT_NEAR(got, want, 1e-9 * std::max(1.0, std::abs(want))) << key << " of step " << i + 1;
    }
    for (const auto& [key, value] : expected.at(GetParam().sharing).items())
      EXPECT_EQ(steps[i].at(key).get<double>(), value.get<double>()) << key;
    EXPECT_EQ(steps[i].at("sharing"), upper);
  }
  const auto weights = checkpoint_values(dir_ / "run/checkpoints/step_00000003.h5");
  const auto golden = safetensors_values(golden_ + "/expected.safetensors", "weights_after.");
  ASSERT_EQ(weights.size(), golden.size());
  double moved =
      0;  // an update's size, from the learning rate: AdamW moves each weight by about it
  for (const auto& [name, values] : golden) moved += static_cast<double>(values.size());
  moved = std::sqrt(moved) * expected_["steps"][0].at("learning_rate").get<double>();
  EXPECT_LE(distance(weights, golden), 1e-8 * moved);
}

std::vector<GoldenRun> golden_runs() {
  std::vector<GoldenRun> runs;
  for (const auto& name : golden_case_names())
    for (const char* sharing : {"grouped", "repeated"}) runs.push_back({name, sharing});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(golden_runs()),
                         [](const auto& run) { return run.param.name + "_" + run.param.sharing; });

}  // namespace
}  // namespace coppice::test
