// The library against transformers: log-probs, entropies, the gradient of every parameter, and the
// weights after three updates. transformers ran every response alone and unpacked, in double.
#include <gtest/gtest.h>

#include <cmath>

#include "golden/golden_case.hpp"
#include "model/tiny_models.hpp"
#include "rl/group_source.hpp"
#include "rl/scorer.hpp"
#include "rl/step_batch.hpp"
#include "rl/temporary_file.hpp"
#include "rl/trainer.hpp"

namespace coppice {
namespace {

using namespace test;

struct GoldenRun {
  std::string name;
  Sharing sharing;
  DType dtype;
};
void PrintTo(const GoldenRun& run, std::ostream* out) { *out << run.name; }

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum);
}
double norm(const NamedValues& tensors) {
  double sum = 0;
  for (const auto& [name, values] : tensors) sum += norm(values) * norm(values);
  return std::sqrt(sum);
}
NamedValues minus(const NamedValues& a, const NamedValues& b) {
  NamedValues difference = a;
  EXPECT_EQ(a.size(), b.size());
  for (auto& [name, values] : difference) {
    const auto& other = b.at(name);
    EXPECT_EQ(values.size(), other.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= other[i];
  }
  return difference;
}

class Golden : public testing::TestWithParam<GoldenRun> {
 protected:
  Golden() : golden_(GetParam().name), model_(golden_.model, GetParam().dtype) {
    model_.set_weights(golden_.weights);
    // As little room as the largest group needs: several micro-batches where that is possible.
    std::int64_t largest = 0;
    for (const Group& group : golden_.groups) {
      auto rows = std::ssize(group.prompt_ids);
      for (const Response& response : group.responses) rows += std::ssize(response.ids);
      largest = std::max<std::int64_t>(largest, rows);
    }
    golden_.trainer.batching = {GetParam().sharing, largest};
  }
  bool f64() const { return GetParam().dtype == DType::kF64; }

  GoldenCase golden_;
  TinyModel model_;
};

std::vector<GoldenRun> golden_runs() {
  std::vector<GoldenRun> runs;
  for (const auto& name : golden_case_names()) {
    for (const auto sharing : {Sharing::kGrouped, Sharing::kRepeated}) {
      for (const auto dtype : {DType::kF64, DType::kF32}) runs.push_back({name, sharing, dtype});
    }
  }
  return runs;
}
INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(golden_runs()), [](const auto& p) {
  return p.param.name + (p.param.sharing == Sharing::kGrouped ? "_grouped_" : "_repeated_") +
         std::string(name_of(p.param.dtype));
});

TEST_P(Golden, LogProbsAndEntropiesEqualTransformers) {
  const auto scores =
      score_groups(model_.ctx(), *model_, golden_.groups, golden_.trainer.batching, 1.0);
  NamedValues logprobs, entropies;
  for (std::size_t g = 0; g < scores.size(); ++g) {
    for (std::size_t r = 0; r < scores[g].size(); ++r) {
      const std::string name = fmt::format("{}.{}", g, r);
      logprobs[name] = scores[g][r].logprobs;
      entropies[name] = scores[g][r].entropies;
    }
  }
  const double bound = f64() ? 1e-12 : 2e-5;
  for (const auto& [kind, actual] : {std::pair{"logprobs.", logprobs}, {"entropies.", entropies}}) {
    const auto difference =
        minus(actual, safetensors_values(golden_.directory, "expected.safetensors", kind));
    for (const auto& [name, values] : difference) {
      for (double value : values) EXPECT_LE(std::abs(value), bound) << kind << name;
    }
  }
}

// The norm of a difference is at most the bound times the larger of that gradient's own norm and
// its share of the whole, sqrt(n_p / n). Mutations seen red: positions running on; k and v
// exchanged in their fused matrix; a tied head that leaves its gradient out; a llama3 blend off by
// 1 %; yarn's given attention_factor ignored.
TEST_P(Golden, GradientsOfEveryParameterEqualTransformers) {
  const StepBatch batch(golden_.groups, golden_.trainer.loss, golden_.trainer.advantage);
  const auto plan = plan_microbatches(batch.groups(), golden_.trainer.batching, EdgeTokens::kInLoss,
                                      packing_cost(golden_.model));
  model_->zero_gradients(model_.ctx());
  for (const auto& microbatch : plan.microbatches) {
    const PackedBatch packed = pack(batch.groups(), microbatch, EdgeTokens::kInLoss);
    std::vector<double> logprobs(packed.edges.size()), entropies(packed.edges.size());
    model_->forward_backward(model_.ctx(), packed, Recompute::kNone,
                             golden_.trainer.loss.temperature, batch.coefficients(packed), logprobs,
                             entropies);
  }
  const auto expected = safetensors_values(golden_.directory, "expected.safetensors", "grad.");
  const auto difference = minus(model_.gradients(), expected);
  const double bound = f64() ? 1e-12 : 3e-5, whole = norm(expected);
  const auto elements = static_cast<double>(parameter_count(golden_.model));
  for (const auto& [name, values] : difference) {
    const double share = whole * std::sqrt(static_cast<double>(values.size()) / elements);
    EXPECT_LE(norm(values), bound * std::max(norm(expected.at(name)), share)) << name;
  }
  EXPECT_LE(norm(difference), bound * whole);
  EXPECT_NEAR(norm(model_.gradients()), golden_.expected["steps"][0]["grad_norm"].get<double>(),
              bound * whole);
}

// Distance over the distance that the three updates moved.  Mutation seen red: beta2 for beta1.
TEST_P(Golden, WeightsAfterThreeUpdatesEqualTransformers) {
  const TemporaryDirectory run_dir;
  golden_.trainer.run_dir = run_dir.path();
  RolloutsSource source(golden_.groups, 3, false, 1);
  ProcessGrid one_rank;
  Trainer trainer(model_.ctx(), *model_, source, golden_.trainer, one_rank);
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(trainer.step().has_value());
  const auto expected =
      safetensors_values(golden_.directory, "expected.safetensors", "weights_after.");
  const double moved = norm(minus(expected, golden_.weights));
  EXPECT_GT(moved, 0.01);
  EXPECT_LE(norm(minus(model_.weights(), expected)), (f64() ? 1e-8 : 2e-2) * moved);
}

}  // namespace
}  // namespace coppice
