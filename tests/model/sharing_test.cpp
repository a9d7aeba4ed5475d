// The claim of the whole program: a group whose prefix runs once gives the log-probabilities and
// the gradients of the same group with its prefix repeated. And the proof that this comparison
// would see the mistakes that are easily made: each of them is made here on purpose and must fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "model/flops.hpp"
#include "model/pass_difference.hpp"
#include "model/tiny_models.hpp"
#include "optim/adamw.hpp"
#include "optim/grad_norm.hpp"

namespace coppice {
namespace {

using namespace test;

struct Bounds {
  double logprobs, gradients;
};
Bounds bounds_of(DType dtype) {
  return dtype == DType::kF64 ? Bounds{1e-12, 1e-12} : Bounds{2e-5, 3e-5};
}

void expect_equal(const PassResult& a, const PassResult& b, DType dtype) {
  const PassDifference found = difference(a, b);
  EXPECT_LE(found.largest_logprob, bounds_of(dtype).logprobs);
  EXPECT_LE(found.worst_gradient, bounds_of(dtype).gradients);
  EXPECT_LE(found.whole_gradient, bounds_of(dtype).gradients);
}

struct SharingCase {
  TinyCase tiny;
  DType dtype;
};
void PrintTo(const SharingCase& c, std::ostream* out) { *out << c.tiny.name() << name_of(c.dtype); }

std::vector<SharingCase> sharing_cases() {
  std::vector<SharingCase> cases;
  for (const auto& tiny : all_tiny_cases()) {
    for (auto dtype : {DType::kF32, DType::kF64}) cases.push_back({tiny, dtype});
  }
  return cases;
}

class Sharing : public testing::TestWithParam<SharingCase> {};
INSTANTIATE_TEST_SUITE_P(Cpu, Sharing, testing::ValuesIn(sharing_cases()), [](const auto& p) {
  return p.param.tiny.name() + std::string(p.param.dtype == DType::kF64 ? "F64" : "F32");
});

// Checks 11, 12 and 21: hard_groups holds empty, one-token, masked and equally starting responses.
TEST_P(Sharing, GroupedEqualsRepeated) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const auto groups = hard_groups(GetParam().tiny.vocab_size);
  for (const double temperature : {1.0, 0.7}) {
    const PassOptions options{.temperature = temperature};
    expect_equal(run_pass(model, grouped(groups), options),
                 run_pass(model, repeated(groups), options), GetParam().dtype);
  }
}

TEST_P(Sharing, HoldsWhenPrefixesAndResponsesAreLongerThanATile) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  TinyGroup group;
  for (int t = 0; t < 129; ++t) group.prompt.push_back(t * 7 % 61);
  for (const int length : {1, 63, 64, 65}) {
    auto& response = group.responses.emplace_back();
    for (int t = 0; t < length; ++t) response.ids.push_back((t * t + length) % 61);
  }
  expect_equal(run_pass(model, grouped({group})), run_pass(model, repeated({group})),
               GetParam().dtype);
}

// Check 6.
TEST_P(Sharing, TheOrderOfGroupsAndResponsesChangesNothingButTheOrderOfSums) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const auto groups = hard_groups(GetParam().tiny.vocab_size);
  const PassResult first = run_pass(model, grouped(groups));
  // Turned round, with coefficients and results named as before.
  std::vector<TinyGroup> turned(groups.rbegin(), groups.rend());
  for (auto& group : turned) std::reverse(group.responses.begin(), group.responses.end());
  const auto original = [&](PredictionEdge edge) {
    edge.group = static_cast<std::int32_t>(groups.size()) - 1 - edge.group;
    const auto& responses = groups[static_cast<std::size_t>(edge.group)].responses;
    edge.response = static_cast<std::int32_t>(responses.size()) - 1 - edge.response;
    return edge;
  };
  PassResult second =
      run_pass(model, grouped(turned), {.coefficients = [&](const PredictionEdge& edge) {
                 return coefficients_of(original(edge));
               }});
  const auto renamed = [&](const std::map<PassResult::Key, double>& values) {
    std::map<PassResult::Key, double> result;
    for (const auto& [key, value] : values) {
      const auto edge = original({0, 0, key[0], key[1], key[2]});
      result[{edge.group, edge.response, edge.offset}] = value;
    }
    return result;
  };
  second.logprobs = renamed(second.logprobs);
  second.entropies = renamed(second.entropies);
  ASSERT_EQ(second.logprobs.size(), first.logprobs.size());
  expect_equal(second, first, GetParam().dtype);
}

// Check 6: equal prompts in two groups are two groups; each gives what it gives alone.
TEST_P(Sharing, TwoGroupsWithEqualPromptsStayTwo) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const TinyGroup a{{5, 9, 2}, {{{3, 4}}, {{8}}}}, b{{5, 9, 2}, {{{3, 7, 7}}}};
  const PassResult both = run_pass(model, grouped({a, b}));
  const PassResult alone = run_pass(model, grouped({b}));
  for (const std::int32_t offset : {0, 1, 2}) {
    EXPECT_NEAR(both.logprobs.at({1, 0, offset}), alone.logprobs.at({0, 0, offset}),
                bounds_of(GetParam().dtype).logprobs);
  }
  EXPECT_EQ(both.logprobs.size(), 6u);
}

// Check 9. Head and linears run over all rows together, so in f32 a library may round a row
// differently when there are other rows; values of one shape must not differ at all.
TEST_P(Sharing, ChangingOneResponseLeavesEveryOtherBitAlone) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  auto groups = hard_groups(GetParam().tiny.vocab_size);
  const PassResult before = run_pass(model, grouped(groups));
  auto& changed = groups[0].responses[0].ids;
  for (auto& id : changed) id = (id + 29) % 61;
  const PassResult after = run_pass(model, grouped(groups));
  std::size_t others = 0;
  for (const auto& [key, value] : before.logprobs) {
    if (key[0] == 0 && key[1] == 0) continue;
    EXPECT_EQ(after.logprobs.at(key), value);
    EXPECT_EQ(after.entropies.at(key), before.entropies.at(key));
    ++others;
  }
  EXPECT_GT(others, 30u);
  EXPECT_NE(after.logprobs.at({0, 0, 1}), before.logprobs.at({0, 0, 1}));
}

// Check 9, with the strongest poison: a NaN weight row reaches only the response that uses it.
TEST_P(Sharing, ANaNInOneResponseReachesNoOther) {
  const TinyCase& tiny = GetParam().tiny;
  if (tiny.tied) return;  // a tied embedding is also the head, which every row sees
  TinyModel model(config_of(tiny), GetParam().dtype);
  const std::vector<TinyGroup> groups{{{5, 9, 2}, {{{3, 60, 4}}, {{3, 8, 4}}, {{7}}}}};
  const PassResult before = run_pass(model, grouped(groups));
  for (std::size_t i = 0; i < 24; ++i) {
    model.set_weight("model.embed_tokens.weight", 60 * 24 + i, std::nan(""));
  }
  const PassResult after = run_pass(model, grouped(groups));
  EXPECT_TRUE(std::isnan(after.logprobs.at({0, 0, 2})));
  for (const auto& [key, value] : before.logprobs) {
    if (key[1] != 0 || key[2] < 2) {
      EXPECT_EQ(after.logprobs.at(key), value);
    }
  }
}

// Check 22. 20 updates at a rate that moves the weights; what two packings differ by is measured
// in the distance that training went.
struct Trained {
  std::map<std::string, std::vector<double>> weights;
};
Trained train(const SharingCase& c, const PackedBatch& batch,
              const std::function<std::pair<double, double>(const PredictionEdge&)>& coefficients) {
  TinyModel model(config_of(c.tiny), c.dtype);
  const auto parameters = model->parameters();
  AdamW optimizer({0.9, 0.95, 1e-8, 0.01}, parameters, model.memory());
  for (int step = 0; step < 20; ++step) {
    run_pass(model, batch, {.coefficients = coefficients});
    const double norm = global_grad_norm(model.ctx(), parameters);
    optimizer.step(model.ctx(), 1e-3, clip_scale(norm, 1.0));
  }
  return {model.weights()};
}

double moved(const Trained& a, const std::map<std::string, std::vector<double>>& b) {
  double sum = 0;
  for (const auto& [name, weight] : a.weights) {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      sum += (weight[i] - b.at(name)[i]) * (weight[i] - b.at(name)[i]);
    }
  }
  return std::sqrt(sum);
}

TEST_P(Sharing, TwentyUpdatesEndInTheSamePlaceAndAnExtraOneOverGDoesNot) {
  const SharingCase& c = GetParam();
  const auto groups = hard_groups(c.tiny.vocab_size);
  TinyModel fresh(config_of(c.tiny), c.dtype);
  const auto start = fresh.weights();
  const Trained shared = train(c, grouped(groups), coefficients_of);
  const Trained plain = train(c, repeated(groups), coefficients_of);
  // The mistake: the shared row's edges averaged instead of summed.
  const Trained averaged = train(c, grouped(groups), [&](const PredictionEdge& edge) {
    const auto [coefficient, entropy] = coefficients_of(edge);
    const auto responses = groups[static_cast<std::size_t>(edge.group)].responses.size();
    const double share = edge.offset == 0 ? 1.0 / static_cast<double>(responses) : 1.0;
    return std::pair{coefficient * share, entropy * share};
  });
  const double distance = moved(plain, start);
  const double bound = c.dtype == DType::kF64 ? 1e-8 : 2e-2;
  EXPECT_GT(distance, 0.1);
  EXPECT_LE(moved(shared, plain.weights) / distance, bound);
  EXPECT_GT(moved(averaged, plain.weights) / distance, bound);
}

// ---- Check 8: mistakes made on purpose. Each must be seen by the comparison above, in f64 and
// even under the wide bounds of f32.

class Mistake : public testing::TestWithParam<SharingCase> {
 protected:
  // Everything a mistake can touch: plan and positions come from forests of their own.
  void expect_seen(const PackedBatch& wrong) {
    TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
    const PassDifference found =
        difference(run_pass(model, wrong), run_pass(model, repeated(groups())));
    EXPECT_GT(found.largest_logprob, bounds_of(GetParam().dtype).logprobs);
    EXPECT_GT(found.worst_gradient, bounds_of(GetParam().dtype).gradients);
    EXPECT_GT(found.whole_gradient, bounds_of(GetParam().dtype).gradients);
  }
  static std::vector<TinyGroup> groups() {
    return {{{5, 9, 2, 7, 1}, {{{3, 4, 6}}, {{8, 2}}, {{7, 7, 1, 0}}}}};
  }
  static constexpr std::int64_t kPrefix = 5, kRows = 14;
};
INSTANTIATE_TEST_SUITE_P(Cpu, Mistake, testing::ValuesIn(sharing_cases()), [](const auto& p) {
  return p.param.tiny.name() + std::string(p.param.dtype == DType::kF64 ? "F64" : "F32");
});

TEST_P(Mistake, OfPositionsThatRunOnOverTheResponsesIsSeen) {
  PackedBatch batch = grouped(groups());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);  // the plan stays
  expect_seen(batch);
}

TEST_P(Mistake, OfASiblingThatIsVisibleIsSeen) {
  PackedBatch batch = grouped(groups());
  const SegmentSpec one{kRows, -1};
  batch.plan = AttentionPlan(PrefixForest({&one, 1}));  // plain causal attention over all rows
  expect_seen(batch);
}

TEST_P(Mistake, OfOneDroppedPrefixKeyIsSeen) {
  PackedBatch batch = grouped(groups());
  // The prefix itself, its last row apart; responses see all but that row.
  std::vector<PlanRectangle> rectangles{{0, kPrefix - 1, 0, 0, kPrefix - 1, Mask::kCausal},
                                        {kPrefix - 1, 1, 0, 0, kPrefix - 1, Mask::kFull},
                                        {kPrefix - 1, 1, 0, kPrefix - 1, 1, Mask::kCausal}};
  std::int64_t begin = kPrefix;
  const TinyGroup group = groups()[0];
  for (const TinyResponse& response : group.responses) {
    const auto length = std::ssize(response.ids);
    rectangles.push_back({begin, length, 0, begin, length, Mask::kCausal});
    rectangles.push_back({begin, length, 0, 0, kPrefix - 1, Mask::kFull});
    begin += length;
  }
  const std::int64_t rows = kRows;
  batch.plan = AttentionPlan(kRows, {&rows, 1}, rectangles);
  expect_seen(batch);
}

TEST_P(Mistake, OfPredictingFirstTokensFromTheSiblingBeforeIsSeen) {
  PackedBatch batch = grouped(groups());
  const std::array<std::int64_t, 3> begins = {kPrefix, kPrefix + 3, kPrefix + 5};
  for (auto& edge : batch.edges) {
    // Response r's first token from the row before it instead of from the prefix's last row.
    if (edge.offset == 0 && edge.response > 0) {
      edge.row = begins[static_cast<std::size_t>(edge.response)] - 1;
    }
  }
  std::sort(batch.edges.begin(), batch.edges.end(),
            [](const auto& a, const auto& b) { return a.row < b.row; });
  expect_seen(batch);
}

TEST_P(Mistake, OfAnExtraOneOverGIsSeenInTheGradientsThoughNotInTheLogProbs) {
  TinyModel model(config_of(GetParam().tiny), GetParam().dtype);
  const PassResult right = run_pass(model, repeated(groups()));
  const PassResult wrong =
      run_pass(model, grouped(groups()), {.coefficients = [](const PredictionEdge& edge) {
                 const auto [c, e] = coefficients_of(edge);
                 return edge.offset == 0 ? std::pair{c / 3, e / 3} : std::pair{c, e};
               }});
  const PassDifference found = difference(wrong, right);
  EXPECT_LE(found.largest_logprob, bounds_of(GetParam().dtype).logprobs);
  EXPECT_GT(found.worst_gradient, bounds_of(GetParam().dtype).gradients);
  EXPECT_GT(found.whole_gradient, bounds_of(GetParam().dtype).gradients);
}

// What is shared is also what is counted.
TEST(SharingCounts, AreThoseOfTheFlopFormulas) {
  const std::vector<TinyGroup> groups{{Tokens(17, 1), {{Tokens(5, 2)}, {Tokens(5, 3)}}}};
  for (const bool share : {true, false}) {
    const PackedBatch batch = share ? grouped(groups) : repeated(groups);
    const PackedWork work = share ? grouped_work(17, 5, 2) : repeated_work(17, 5, 2);
    EXPECT_EQ(batch.rows(), work.rows);
    EXPECT_EQ(batch.plan.visible_pairs(), work.visible_pairs);
    EXPECT_EQ(HeadEdges(batch.edges).row_count(), work.edge_rows);
  }
}

}  // namespace
}  // namespace coppice
