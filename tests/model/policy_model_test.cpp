// The whole model against a naive one in double that runs every path alone, gradients against
// finite differences of that one, and the equivalences that must hold to the last bit.
#include "model/policy_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/flops.hpp"
#include "model/tiny_models.hpp"

namespace coppice {
namespace {

using namespace test;

// The bounds of the design: log-probs in f32 differ from exact ones by at most 2e-5 on models of
// this size.
double logprob_bound(DType dtype) { return dtype == DType::kF64 ? 1e-12 : 2e-5; }

Tokens path_of(const TinyGroup& group, const TinyResponse& response) {
  Tokens path = group.prompt;
  path.insert(path.end(), response.ids.begin(), response.ids.end());
  return path;
}

struct ModelCase {
  TinyCase tiny;
  DType dtype;
};
void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.tiny.name() << name_of(c.dtype); }
std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (const auto& tiny : all_tiny_cases()) {
    for (auto dtype : {DType::kF32, DType::kF64}) cases.push_back({tiny, dtype});
  }
  return cases;
}

class EachModel : public testing::TestWithParam<ModelCase> {
 protected:
  std::vector<TinyGroup> groups() { return hard_groups(GetParam().tiny.vocab_size); }
};
INSTANTIATE_TEST_SUITE_P(Cpu, EachModel, testing::ValuesIn(model_cases()), [](const auto& p) {
  return p.param.tiny.name() + std::string(p.param.dtype == DType::kF64 ? "F64" : "F32");
});

// Mutation seen red: positions running on over the packed rows.
TEST_P(EachModel, ScoresEqualTheNaiveModelOnEachPathAlone) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const reference::NaiveModel naive = model.naive();
  const auto all = groups();
  for (const double temperature : {1.0, 0.7}) {
    std::map<std::pair<int, int>, reference::NaiveModel::Scores> paths;
    for (const auto& batch : {grouped(all), repeated(all)}) {
      std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
      model->score(model.ctx(), batch, temperature, logprobs, entropies);
      for (std::size_t i = 0; i < batch.edges.size(); ++i) {
        const auto& edge = batch.edges[i];
        const auto& group = all[static_cast<std::size_t>(edge.group)];
        const auto path = path_of(group, group.responses[static_cast<std::size_t>(edge.response)]);
        auto& exact = paths[{edge.group, edge.response}];
        if (exact.logprobs.empty()) exact = naive.score(path, temperature);
        const auto at = group.prompt.size() - 1 + static_cast<std::size_t>(edge.offset);
        EXPECT_NEAR(logprobs[i], exact.logprobs[at], logprob_bound(GetParam().dtype));
        EXPECT_NEAR(entropies[i], exact.entropies[at], logprob_bound(GetParam().dtype));
      }
    }
  }
}

// Mutation seen red: no final norm in training.
TEST_P(EachModel, TrainsOnTheVeryLogProbsThatItScores) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const auto batch = grouped(groups());
  std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
  model->score(model.ctx(), batch, 0.9, logprobs, entropies);
  for (const bool fused : {false, true}) {
    const PassResult pass = run_pass(model, batch, {.temperature = 0.9, .fused = fused});
    for (std::size_t i = 0; i < batch.edges.size(); ++i) {
      const auto& edge = batch.edges[i];
      EXPECT_EQ(pass.logprobs.at({edge.group, edge.response, edge.offset}), logprobs[i]);
      EXPECT_EQ(pass.entropies.at({edge.group, edge.response, edge.offset}), entropies[i]);
    }
  }
}

TEST_P(EachModel, GivesTheSameBitsFusedOrInTwoPassesAndUnderEveryRecompute) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const auto batch = grouped(groups());
  const PassResult first = run_pass(model, batch);
  for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
    for (const bool fused : {true, false}) {
      const PassResult other = run_pass(model, batch, {.recompute = recompute, .fused = fused});
      EXPECT_EQ(other.logprobs, first.logprobs);
      EXPECT_EQ(other.entropies, first.entropies);
      EXPECT_EQ(other.gradients, first.gradients);
    }
  }
}

// Seen red: settle_gradients that does nothing.
TEST_P(EachModel, GradientsWithoutAPassAreZero) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const PassResult pass = run_pass(model, grouped(groups()));
  model->zero_gradients(model.ctx());
  model->settle_gradients(model.ctx());
  for (const auto& [name, gradient] : model.gradients()) {
    EXPECT_THAT(gradient, testing::Each(0.0)) << name;
  }
  EXPECT_EQ(run_pass(model, grouped(groups())).gradients, pass.gradients);
}

// Mutation seen red: gradients of small parameters not zeroed.
TEST_P(EachModel, AddsToItsGradients) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const auto all = groups();
  const PassResult whole = run_pass(model, grouped(all));
  // Two micro-batches, one after the other, without zeroing between.
  model->zero_gradients(model.ctx());
  for (std::size_t begin : {0u, 2u}) {
    const std::vector<TinyGroup> half(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                      all.begin() + static_cast<std::ptrdiff_t>(begin) + 2);
    const auto batch = grouped(half);
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    model->forward_backward(
        model.ctx(), batch, Recompute::kNone, 1.0,
        [&](std::int64_t first, auto, auto, std::span<double> c, std::span<double> e) {
          for (std::size_t i = 0; i < c.size(); ++i) {
            auto edge = batch.edges[static_cast<std::size_t>(first) + i];
            edge.group += static_cast<std::int32_t>(begin);
            std::tie(c[i], e[i]) = coefficients_of(edge);
          }
        },
        logprobs, entropies);
  }
  const double bound = GetParam().dtype == DType::kF64 ? 1e-12 : 3e-5;
  for (const auto& [name, gradient] : model.gradients()) {
    EXPECT_LT(relative_difference(gradient, whole.gradients.at(name)), bound) << name;
  }
}

class EachModelF64 : public testing::TestWithParam<TinyCase> {};
INSTANTIATE_TEST_SUITE_P(Cpu, EachModelF64, testing::ValuesIn(all_tiny_cases()),
                         [](const auto& p) { return p.param.name(); });

// Central differences in double: with h = 1e-5 their error is about h^2 = 1e-10 of the third
// derivative plus 1e-16 / h = 1e-11 of the loss, both under 1e-7 of these gradients.
// Mutations seen red: a tied gradient without the head, and without the embedding; head rows'
// gradients not put back; the lowest block's backward left out.
TEST_P(EachModelF64, GradientsEqualFiniteDifferencesOfTheNaiveModel) {
  TinyModel model(config_of(GetParam()), DType::kF64);
  const std::vector<TinyGroup> groups{
      {{5, 9, 2, 7}, {{{3, 1, 4}}, {{3}}, {{}}, {{8, 8, 8, 8}, {1, 0, 1, 1}}}}, {{6}, {{{0, 5}}}}};
  const PackedBatch batch = grouped(groups);
  const PassResult pass = run_pass(model, batch, {.temperature = 0.8});
  reference::NaiveModel naive = model.naive();
  const auto loss = [&] {
    double sum = 0;
    std::map<std::pair<int, int>, reference::NaiveModel::Scores> paths;
    for (const auto& edge : batch.edges) {
      const auto& group = groups[static_cast<std::size_t>(edge.group)];
      const auto path = path_of(group, group.responses[static_cast<std::size_t>(edge.response)]);
      auto& scores = paths[{edge.group, edge.response}];
      if (scores.logprobs.empty()) scores = naive.score(path, 0.8);
      const auto at = group.prompt.size() - 1 + static_cast<std::size_t>(edge.offset);
      const auto [c, e] = coefficients_of(edge);
      sum += c * scores.logprobs[at] + e * scores.entropies[at];
    }
    return sum;
  };
  for (const auto& [name, gradient] : pass.gradients) {
    auto& weight = naive.weights.at(name);
    // Of the embedding, rows of tokens that occur; of the rest, elements spread over the tensor.
    const bool vocabulary = name.find("embed") != std::string::npos || name.find("lm_head") == 0;
    for (std::size_t probe = 0; probe < 3; ++probe) {
      const std::size_t element = vocabulary ? (probe + 3) * 24 + 5 * probe
                                             : (probe * weight.size() / 3 + probe) % weight.size();
      const double kept = weight[element], h = 1e-5;
      weight[element] = kept + h;
      const double up = loss();
      weight[element] = kept - h;
      const double down = loss();
      weight[element] = kept;
      EXPECT_NEAR(gradient[element], (up - down) / (2 * h),
                  1e-7 * (1 + std::abs(gradient[element])))
          << name << "[" << element << "]";
    }
  }
}

// Check 15: one step of plain gradient descent on -A logprob.
TEST_P(EachModelF64, OneStepRaisesLogProbsOfPositiveAdvantageAndLowersThoseOfNegative) {
  TinyModel model(config_of(GetParam()), DType::kF64);
  const PackedBatch batch = grouped({{{5, 9, 2}, {{{3}}, {{8}}}}});
  const auto advantage = [](const PredictionEdge& edge) { return edge.response == 0 ? 1.0 : -1.0; };
  const PassResult before =
      run_pass(model, batch, {.coefficients = [&](const PredictionEdge& edge) {
                 return std::pair{-advantage(edge), 0.0};
               }});
  for (const auto& [name, weight] : model.weights()) {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      model.set_weight(name, i, weight[i] - 1e-3 * before.gradients.at(name)[i]);
    }
  }
  const PassResult after = run_pass(model, batch);
  EXPECT_GT(after.logprobs.at({0, 0, 0}), before.logprobs.at({0, 0, 0}));
  EXPECT_LT(after.logprobs.at({0, 1, 0}), before.logprobs.at({0, 1, 0}));
}

const TinyCase kLlama{"Llama", false, 4, 2, 6};

TEST(PolicyModel, GivesTheSameBitsTwice) {
  TinyModel model(config_of(kLlama), DType::kF32, 2);
  const auto batch = grouped(hard_groups(61));
  const PassResult first = run_pass(model, batch), second = run_pass(model, batch);
  EXPECT_EQ(first.logprobs, second.logprobs);
  EXPECT_EQ(first.gradients, second.gradients);
}

// In f64 the matrix multiplication of this version runs in one thread's order; everything else must
// not depend on threads at all.
TEST(PolicyModel, GivesTheSameBitsForAnyThreadCountInF64) {
  const auto batch = grouped(hard_groups(61));
  TinyModel one(config_of(kLlama), DType::kF64, 1);
  const PassResult expected = run_pass(one, batch);
  for (const int threads : {2, 3}) {
    TinyModel other(config_of(kLlama), DType::kF64, threads);
    const PassResult actual = run_pass(other, batch);
    EXPECT_EQ(actual.logprobs, expected.logprobs);
    EXPECT_EQ(actual.gradients, expected.gradients);
  }
}

TEST(PolicyModel, ListsEachParameterOnceInAFixedOrder) {
  for (const auto& tiny : all_tiny_cases()) {
    TinyModel model(config_of(tiny), DType::kF32);
    std::vector<std::string> names;
    for (const Parameter* parameter : model->parameters()) {
      for (const auto& part : parameter->parts) names.push_back(part.name);
    }
    EXPECT_EQ(names.front(), "model.embed_tokens.weight");
    EXPECT_EQ(names.back(), tiny.tied ? "model.norm.weight" : "lm_head.weight");
    const std::set<std::string> distinct(names.begin(), names.end());
    EXPECT_EQ(distinct.size(), names.size());
    std::int64_t elements = 0;
    for (const Parameter* parameter : model->parameters()) elements += parameter->value.numel();
    EXPECT_EQ(elements, parameter_count(model->config()));
    for (const auto* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      EXPECT_EQ(distinct.count(fmt::format("model.layers.1.self_attn.{}.weight", part)), 1u);
    }
    EXPECT_EQ(distinct.count("model.layers.0.self_attn.q_proj.bias"), tiny.family == "Qwen2");
    EXPECT_EQ(distinct.count("model.layers.0.self_attn.q_norm.weight"), tiny.family == "Qwen3");
  }
}

TEST(PolicyModel, DecaysMatricesButNeitherNormsNorBiases) {
  for (const auto& tiny : all_tiny_cases()) {
    TinyModel model(config_of(tiny), DType::kF32);
    for (const Parameter* parameter : model->parameters()) {
      EXPECT_EQ(parameter->weight_decay == WeightDecay::kYes, parameter->value.shape().rank() == 2)
          << parameter->name;
    }
  }
}

// Mutation seen red: drawn by the fused parameter's name.
TEST(PolicyModel, InitializesByNameAndElement) {
  TinyCase tiny{"Qwen2", false, 4, 2, 6};
  TinyModel f32(config_of(tiny), DType::kF32), f64(config_of(tiny), DType::kF64);
  f32->initialize(f32.ctx(), 5);
  f64->initialize(f64.ctx(), 5);
  const auto weights = f64.weights();
  EXPECT_THAT(weights.at("model.norm.weight"), testing::Each(1.0));
  EXPECT_THAT(weights.at("model.layers.1.input_layernorm.weight"), testing::Each(1.0));
  EXPECT_THAT(weights.at("model.layers.1.self_attn.k_proj.bias"), testing::Each(0.0));
  // By hand from the definition: element 17 of a tensor inside a fused parameter.
  const RandomStream stream(5, "init/model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(weights.at("model.layers.1.self_attn.k_proj.weight")[17], 0.02 * stream.normal(17));
  for (const auto& [name, values] : f32.weights()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<double>(static_cast<float>(weights.at(name)[i]))) << name;
    }
  }
  f64->initialize(f64.ctx(), 6);
  EXPECT_NE(f64.weights(), weights);
}

TEST(PolicyModel, TakesAResponseThatIsEmptyAndABatchThatLearnsNothing) {
  TinyModel model(config_of(kLlama), DType::kF64);
  const PassResult pass = run_pass(model, grouped({{{5, 9, 2}, {{{}}}}}));
  EXPECT_TRUE(pass.logprobs.empty());
  for (const auto& [name, gradient] : pass.gradients) {
    EXPECT_THAT(gradient, testing::Each(0.0)) << name;
  }
  std::vector<double> none;
  model->score(model.ctx(), grouped({{{5, 9, 2}, {{{}}}}}), 1.0, none, none);
}

// Check 5: 40 responses of 8 tokens are 340 rows, but no sequence is longer than 28.
TEST(PolicyModel, LimitsSequencesByPositionNotByPackedRows) {
  TinyModel model(config_of(kLlama), DType::kF64);
  TinyGroup group{Tokens(20, 3), {}};
  for (int r = 0; r < 40; ++r) group.responses.push_back({Tokens(8, r)});
  const PackedBatch batch = grouped({group});
  ASSERT_GT(batch.rows(), model->config().max_position_embeddings);
  EXPECT_EQ(run_pass(model, batch).logprobs.size(), 320u);
  const PackedBatch too_long = grouped({{Tokens(250, 3), {{Tokens(7, 1)}}}});
  EXPECT_THROW(run_pass(model, too_long), ContractError);
  EXPECT_NO_THROW(run_pass(model, grouped({{Tokens(250, 3), {{Tokens(6, 1)}}}})));
}

TEST(PolicyModel, RefusesIdsOutsideTheVocabularyAndBatchesThatDoNotFitTogether) {
  TinyModel model(config_of(kLlama), DType::kF64);
  EXPECT_THROW(run_pass(model, grouped({{{5, 61}, {{{3}}}}})), ContractError);
  EXPECT_THROW(run_pass(model, grouped({{{5, -1}, {{{3}}}}})), ContractError);
  PackedBatch batch = grouped({{{5, 9}, {{{3}}}}});
  batch.token_ids.pop_back();
  EXPECT_THROW(run_pass(model, batch), ContractError);
}

TEST(PolicyModel, ScoresWithoutGradientsOrActivations) {
  TinyModel model(config_of(kLlama), DType::kF64, 1, WithGradients::kNo);
  const PackedBatch batch = grouped(hard_groups(61));
  std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
  model->score(model.ctx(), batch, 1.0, logprobs, entropies);
  EXPECT_EQ(model.memory().by_name().count("gradients"), 0u);
  EXPECT_EQ(model.memory().by_name().count("activations"), 0u);
}

TEST(PolicyModel, TellsTheSecondsOfBothPhases) {
  TinyModel model(config_of(kLlama), DType::kF64);
  const PackedBatch batch = grouped(hard_groups(61));
  std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
  PhaseSeconds seconds;
  const auto nothing = [](std::int64_t, auto, auto, std::span<double>, std::span<double>) {};
  model->forward_backward(model.ctx(), batch, Recompute::kNone, 1.0, nothing, logprobs, entropies,
                          &seconds);
  EXPECT_GT(seconds.forward, 0);
  EXPECT_GT(seconds.backward, 0);
}

}  // namespace
}  // namespace coppice
