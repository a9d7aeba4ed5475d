// The head against hand-worked numbers and the double reference: several edges a row, temperatures,
// every way to cut chunks, padding, and garbage that must not spread.
//
// Seen red: temperature left out of the entropy; log p + H taken without H; a row's second edge
// dropped; target term written instead of added; edges of the first chunk used for all; dweight
// overwritten; -inf not held finite; NaN made 0 by the exponential; rows without coefficients
// computed all the same.
#include "layers/vocab_parallel_logprob.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers/head_support.hpp"
#include "reference/finite_differences.hpp"
#include "reference/naive_layers.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::edges_of;
using test::GivenLogits;
using test::mixed_edges;
using test::numbers;
using test::Numbers;
using test::reference_edges;
using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_BACKENDS_TEST(Head);
COPPICE_LAYER_TEST(HeadMemory);

// z = (0, ln 3): p = (1/4, 3/4). Target 1: logprob ln(3/4). H = ln 4 - (3/4) ln 3.
// c = 1: dz = (-1/4, 1/4). e = 1: dz_0 = -(1/4)(ln(1/4) + H) = (3/16) ln 3 = -dz_1.
TEST_P(Head, EqualsTwoTokensWorkedByHand) {
  const double ln3 = std::log(3.0);
  const Tensor x = test_.filled(dtype(), {1, 1}, 1.0);
  const Tensor weight = test_.from(dtype(), {2, 1}, {0, ln3});
  const auto edges = edges_of({{1}});
  const auto by_logprob = test::run_head(test_, x, weight, edges, 1.0, 1, {1.0}, {0.0});
  EXPECT_NEAR(by_logprob.logprobs[0], std::log(0.75), tolerance(dtype()));
  EXPECT_NEAR(by_logprob.entropies[0], std::log(4.0) - 0.75 * ln3, tolerance(dtype()));
  EXPECT_LE(relative_difference(values_of(by_logprob.dweight), {0.25, 0.75}), tolerance(dtype()));
  EXPECT_LE(relative_difference(values_of(by_logprob.dx), {0.25 * ln3}), tolerance(dtype()));
  const auto by_entropy = test::run_head(test_, x, weight, edges, 1.0, 1, {0.0}, {1.0});
  const double dz = 3.0 / 16 * ln3;
  EXPECT_LE(relative_difference(values_of(by_entropy.dweight), {0.5 + dz, 0.5 - dz}),
            tolerance(dtype()));
}

TEST(HeadReference, GradientAgreesWithFiniteDifferences) {
  const auto edges = reference_edges(mixed_edges(4, 7));
  const auto count = static_cast<std::int64_t>(edges.size());
  const auto logits = numbers("logits", 28), c = numbers("c", count), e = numbers("e", count);
  const auto loss = [&](const Numbers& at) {
    const auto result = reference::logprobs(at, 7, edges, 0.7);
    return reference::dot(c, result.logprobs) + reference::dot(e, result.entropies);
  };
  EXPECT_LE(relative_difference(reference::logprob_gradient(logits, 7, edges, 0.7, c, e),
                                reference::finite_differences(loss, logits)),
            reference::kFiniteDifferenceTolerance);
}

TEST_P(Head, EqualsTheReferenceForEveryVocabularyChunkAndTemperature) {
  constexpr std::int64_t kRows = 8, kWidth = 6;
  for (const std::int64_t vocabulary : {1, 2, 7, 16, 151, 1024, 2055}) {
    const auto edges = mixed_edges(kRows, vocabulary);
    const auto list = reference_edges(edges);
    const auto c = numbers("c", edges.edge_count()), e = numbers("e", edges.edge_count());
    const Tensor x = test_.random(dtype(), {kRows, kWidth}, "x");
    const Tensor weight = test_.random(dtype(), {vocabulary, kWidth}, "weight");
    const auto logits = reference::linear(values_of(x), values_of(weight), {}, kWidth);
    for (const double temperature : {0.6, 1.0, 1.7}) {
      const auto expected = reference::logprobs(logits, vocabulary, list, temperature);
      const auto dz = reference::logprob_gradient(logits, vocabulary, list, temperature, c, e);
      auto gradients = reference::linear_gradients(values_of(x), values_of(weight), dz, kWidth);
      for (double& value : gradients.dw) value += 0.5;
      for (const std::int64_t chunk_rows : {1, 3, 8, 100}) {
        SCOPED_TRACE(fmt::format("vocabulary {}, temperature {}, chunks of {}", vocabulary,
                                 temperature, chunk_rows));
        const auto result = test::run_head(test_, x, weight, edges, temperature, chunk_rows, c, e);
        // A logit has K = width terms and is at most about 4 sqrt(K) large; its error passes into a
        // log-prob undiminished. Sums over the vocabulary are double in both.
        const double logit = 4 * tolerance(accumulation_of(dtype()), kWidth) / temperature;
        const double sums = 8 * tolerance(DType::kF64, vocabulary);
        for (std::size_t i = 0; i < list.size(); ++i) {
          EXPECT_NEAR(result.logprobs[i], expected.logprobs[i], logit + sums) << i;
          EXPECT_NEAR(result.entropies[i], expected.entropies[i], logit + sums) << i;
        }
        const double scale = vocabulary == 1 ? 0 : 1;  // one token: every gradient is 0
        EXPECT_LE(relative_difference(values_of(result.dx), gradients.dx),
                  scale * tolerance(dtype(), vocabulary) + (1 - scale) * tolerance(dtype()) * 10);
        EXPECT_LE(relative_difference(values_of(result.dweight), gradients.dw),
                  tolerance(dtype(), kRows) * 4);
      }
    }
  }
}

TEST_P(Head, GivesTheSameBitsInOnePassAndInTwo) {
  const Tensor x = test_.random(dtype(), {7, 5}, "x");
  const Tensor weight = test_.random(dtype(), {67, 5}, "weight");
  const auto edges = mixed_edges(7, 67);
  const auto c = numbers("c", edges.edge_count()), e = numbers("e", edges.edge_count());
  const auto fused = test::run_head(test_, x, weight, edges, 0.9, 3, c, e);
  Numbers logprobs(c.size()), entropies(c.size());
  Tensor dx = test_.zeros(dtype(), x.shape());
  Tensor dweight = test_.filled(accumulation_of(dtype()), weight.shape(), 0.5);
  logprob_forward(ctx(), x, weight, edges, 0.9, 3, logprobs, entropies);
  logprob_backward(ctx(), x, weight, edges, 0.9, 3, c, e, dx, dweight.view());
  EXPECT_EQ(logprobs, fused.logprobs);
  EXPECT_EQ(entropies, fused.entropies);
  EXPECT_TRUE(bit_equal(dx, fused.dx));
  EXPECT_TRUE(bit_equal(dweight, fused.dweight));
}

TEST_P(Head, ShowsTheLossEachEdgeOnceAndInOrder) {
  const Tensor x = test_.random(dtype(), {5, 4}, "x");
  const Tensor weight = test_.random(dtype(), {9, 4}, "weight");
  const auto edges = edges_of({{1, 2, 3}, {4}, {}, {5, 5}, {6}});
  Numbers logprobs(7), entropies(7);
  Tensor dx = test_.zeros(dtype(), {5, 4});
  std::vector<std::int64_t> first, sizes;
  logprob_forward_backward(
      ctx(), x, weight, edges, 1.0, 2,
      [&](std::int64_t first_edge, std::span<const double> l, std::span<const double> h,
          std::span<double> c, std::span<double> e) {
        first.push_back(first_edge);
        sizes.push_back(std::ssize(l));
        EXPECT_EQ(l.data(), logprobs.data() + first_edge);
        EXPECT_EQ(h.size(), l.size());
        for (const double value : c) EXPECT_EQ(value, 0.0);
        EXPECT_EQ(e.size(), c.size());
      },
      logprobs, entropies, dx, std::nullopt);
  EXPECT_THAT(first, testing::ElementsAre(0, 4, 6));
  EXPECT_THAT(sizes, testing::ElementsAre(4, 2, 1));
  EXPECT_EQ(values_of(dx), Numbers(20, 0.0));  // nothing was asked to learn
}

// All responses of a group start with the same token: G edges of one row with one target.
TEST_P(Head, SumsTheEdgesOfResponsesThatStartAlike) {
  const Tensor x = test_.random(dtype(), {1, 4}, "x");
  const Tensor weight = test_.random(dtype(), {11, 4}, "weight");
  const auto together = test::run_head(test_, x, weight, edges_of({{3, 3, 3}}), 1.0, 1,
                                       {0.5, -2.0, 4.0}, {0.25, 0.5, 0.25});
  const auto one = test::run_head(test_, x, weight, edges_of({{3}}), 1.0, 1, {2.5}, {1.0});
  EXPECT_EQ(together.logprobs, Numbers(3, one.logprobs[0]));
  EXPECT_EQ(together.entropies, Numbers(3, one.entropies[0]));
  EXPECT_LE(relative_difference(values_of(together.dx), values_of(one.dx)), tolerance(dtype(), 11));
}

TEST_P(Head, ReadsNoPaddingAndLeavesItsGradientAlone) {
  constexpr std::int64_t kVocabulary = 151;
  auto weights = values_of(test_.random(dtype(), {160, 5}, "weight"));
  std::fill_n(weights.begin() + 5 * kVocabulary, 45, std::numeric_limits<double>::quiet_NaN());
  const Tensor padded = test_.from(dtype(), {160, 5}, weights);
  const Tensor x = test_.random(dtype(), {4, 5}, "x");
  const auto edges = mixed_edges(4, kVocabulary);
  const auto c = numbers("c", edges.edge_count()), e = numbers("e", edges.edge_count());
  test::OneRank rank;
  const VocabRanks vocabulary{rank.context.tensor, {kVocabulary, 160, 0, kVocabulary}};
  const auto result = test::run_head(test_, x, padded, edges, 1.0, 3, c, e, vocabulary);
  const auto exact =
      test::run_head(test_, x, padded.view().rows(0, kVocabulary), edges, 1.0, 3, c, e);
  EXPECT_EQ(result.logprobs, exact.logprobs);
  EXPECT_EQ(result.entropies, exact.entropies);
  EXPECT_TRUE(bit_equal(result.dx, exact.dx));
  EXPECT_TRUE(bit_equal(result.dweight.view().rows(0, kVocabulary), exact.dweight));
  EXPECT_EQ(values_of(result.dweight.view().rows(kVocabulary, 9)), Numbers(45, 0.5));
  for (const double entropy : result.entropies) EXPECT_TRUE(std::isfinite(entropy));
  EXPECT_THROW(test::run_head(test_, x, padded, edges_of({{151}, {}, {}, {}}), 1.0, 3, {0.0}, {0.0},
                              vocabulary),
               ContractError);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST_P(Head, GivesColumnsOfMinusInfinityNoProbabilityAndNoGradient) {
  for (const std::int64_t padding : {1, 7, 20}) {
    Numbers values = numbers("logits", 19);
    values.resize(static_cast<std::size_t>(19 + padding), -kInfinity);
    GivenLogits given(test_, dtype(), values, 19 + padding, edges_of({{4}}));
    given.run(ctx(), 0.8, {1.5}, {2.5});
    values =
        values_of(test_.from(accumulation_of(dtype()), {1, 19 + padding}, values));  // as rounded
    const auto expected = reference::logprobs(values, 19 + padding, {{0, 4}}, 0.8);
    const auto gradient =
        reference::logprob_gradient(values, 19 + padding, {{0, 4}}, 0.8, {1.5}, {2.5});
    EXPECT_NEAR(given.logprobs[0], expected.logprobs[0], 4 * tolerance(accumulation_of(dtype())));
    EXPECT_NEAR(given.entropies[0], expected.entropies[0], 4 * tolerance(accumulation_of(dtype())));
    EXPECT_LE(relative_difference(values_of(given.gradient), gradient), 4 * tolerance(dtype()));
    for (std::size_t v = 19; v < values.size(); ++v) EXPECT_EQ(values_of(given.gradient)[v], 0.0);
  }
}

// The gradient may lie over the logits it is made from.  Mutation seen red: no barrier between
// reading and writing.
TEST_P(Head, EqualsTheReferenceForVocabulariesOfManyRuns) {
  for (const std::int64_t vocabulary : {4096, 6143, 6152}) {
    const Numbers values = values_of(
        test_.from(accumulation_of(dtype()), {2 * vocabulary}, numbers("logits", 2 * vocabulary)));
    const auto last = static_cast<std::int32_t>(vocabulary - 1);
    GivenLogits given(test_, dtype(), values, vocabulary, edges_of({{0, last, 2048}, {2047}}));
    const Numbers c{1.5, -0.5, 0.25, 2.0}, e{0.5, 0.5, 0.0, -1.0};
    given.run(ctx(), 0.9, c, e);
    const auto list = reference_edges(given.edges);
    const auto expected = reference::logprobs(values, vocabulary, list, 0.9);
    const double bound =
        8 * tolerance(accumulation_of(dtype())) + 8 * tolerance(DType::kF64, vocabulary);
    for (std::size_t i = 0; i < list.size(); ++i) {
      EXPECT_NEAR(given.logprobs[i], expected.logprobs[i], bound);
      EXPECT_NEAR(given.entropies[i], expected.entropies[i], bound);
    }
    const auto gradient = reference::logprob_gradient(values, vocabulary, list, 0.9, c, e);
    EXPECT_LE(relative_difference(values_of(given.gradient), gradient),
              tolerance(dtype(), vocabulary));
  }
}

// Three ranks hold 40, 57 and no tokens; each finds what one rank with all of them finds.
// Mutations seen red: sums added without their distance from the largest logit; the last rank left
// out.
TEST_P(Head, MergesTheStatisticsOfRanks) {
  constexpr std::int64_t kRows = 3, kVocabulary = 97;
  const DType wide = accumulation_of(dtype());
  const auto edges = mixed_edges(kRows, kVocabulary);
  Tensor logits = test_.random(wide, {kRows, kVocabulary}, "logits", 5.0);
  const auto body = test::head_body(ctx());
  std::vector<LogitChunk> chunks;
  std::vector<Tensor> statistics;
  std::vector<double> all;
  for (const auto& [first, count] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 40}, {40, 57}, {97, 0}}) {
    statistics.push_back(test_.zeros(DType::kF64, {kRows, 3}));
    const TensorView shard = logits.view().columns(first, count);
    chunks.push_back({shard, shard, statistics.back(), 0, first, 0.7});
    body.statistics(ctx(), chunks.back());
    const auto own = values_of(statistics.back());
    all.insert(all.end(), own.begin(), own.end());
  }
  const Tensor of_ranks = test_.from(DType::kF64, {3 * kRows, 3}, all);
  const auto count = edges.edge_count();
  std::vector<double> targets(static_cast<std::size_t>(count), 0.0);
  for (const LogitChunk& chunk : chunks) {
    Tensor own = test_.zeros(DType::kF64, {count});
    body.target_logits(ctx(), edges, chunk, own);
    const auto values = values_of(own);
    for (std::size_t i = 0; i < targets.size(); ++i) targets[i] += values[i];
  }
  const auto expected =
      reference::logprobs(values_of(logits), kVocabulary, reference_edges(edges), 0.7);
  for (const LogitChunk& chunk : chunks) {
    body.merge_statistics(ctx(), of_ranks, chunk);
    Numbers logprobs(targets.size()), entropies(targets.size());
    body.finish(ctx(), edges, chunk, test_.from(DType::kF64, {count}, targets), logprobs,
                entropies);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      EXPECT_NEAR(logprobs[i], expected.logprobs[i], 32 * tolerance(wide));
      EXPECT_NEAR(entropies[i], expected.entropies[i], 32 * tolerance(wide));
    }
  }
}

TEST_P(Head, StaysExactForLogitsThatAreLargeOrFarApart) {
  Numbers values{3000, 2999, 2990, 1000, -3000};
  GivenLogits given(test_, dtype(), values, 5, edges_of({{1, 4}}));
  given.run(ctx(), 1.0, {1.0, 1.0}, {1.0, 0.0});
  const auto expected = reference::logprobs(values, 5, {{0, 1}, {0, 4}}, 1.0);
  EXPECT_NEAR(given.logprobs[0], expected.logprobs[0], tolerance(accumulation_of(dtype())));
  EXPECT_NEAR(given.logprobs[1], expected.logprobs[1], 6000 * tolerance(accumulation_of(dtype())));
  EXPECT_NEAR(given.entropies[0], expected.entropies[0], tolerance(accumulation_of(dtype())));
  EXPECT_LE(relative_difference(values_of(given.gradient),
                                reference::logprob_gradient(values, 5, {{0, 1}, {0, 4}}, 1.0,
                                                            {1.0, 1.0}, {1.0, 0.0})),
            tolerance(dtype()));
}

TEST_P(Head, HidesNoGarbageAndKeepsItInItsRow) {
  for (const std::int64_t vocabulary : {5, 40}) {
    for (const double garbage : {kNaN, kInfinity}) {
      for (const std::int64_t where : {std::int64_t{0}, vocabulary - 1}) {
        Numbers values = numbers("logits", 3 * vocabulary);
        const auto edges = edges_of({{1}, {2}, {3}});
        GivenLogits clean(test_, dtype(), values, vocabulary, edges);
        clean.run(ctx(), 1.0, {1, 1, 1}, {1, 1, 1});
        values[static_cast<std::size_t>(vocabulary + where)] = garbage;
        GivenLogits dirty(test_, dtype(), values, vocabulary, edges);
        dirty.run(ctx(), 1.0, {1, 1, 1}, {1, 1, 1});
        EXPECT_FALSE(std::isfinite(dirty.logprobs[1])) << garbage << " at " << where;
        EXPECT_FALSE(std::isfinite(dirty.entropies[1])) << garbage << " at " << where;
        for (const std::int64_t row : {0, 2}) {
          EXPECT_EQ(clean.logprobs[static_cast<std::size_t>(row)],
                    dirty.logprobs[static_cast<std::size_t>(row)]);
          EXPECT_TRUE(bit_equal(clean.gradient.rows(row, 1), dirty.gradient.rows(row, 1)));
        }
      }
    }
  }
}

TEST_P(Head, GivesRowsThatDoNotLearnAGradientOfExactlyZero) {
  Numbers values = numbers("logits", 20);
  values[3] = kNaN;
  GivenLogits given(test_, dtype(), values, 10, edges_of({{1, 2}, {3}}));
  given.run(ctx(), 1.0, {0, 0, 1}, {0, 0, 0});
  EXPECT_EQ(values_of(given.gradient.rows(0, 1)), Numbers(10, 0.0));
  // Coefficients that cancel still move their targets apart.
  GivenLogits cancelling(test_, dtype(), numbers("logits", 10), 10, edges_of({{1, 2}}));
  cancelling.run(ctx(), 2.0, {1, -1}, {0, 0});
  EXPECT_EQ(values_of(cancelling.gradient), (Numbers{0, 0.5, -0.5, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_P(Head, GivesTheSameBitsForAnyThreadCount) {
  const auto values = numbers("logits", 30 * 77);
  const auto edges = mixed_edges(30, 77);
  const auto c = numbers("c", edges.edge_count()), e = numbers("e", edges.edge_count());
  ctx().threads = 1;
  GivenLogits one(test_, dtype(), values, 77, edges);
  one.run(ctx(), 0.7, c, e);
  for (const int threads : {2, 3}) {
    ctx().threads = threads;
    GivenLogits many(test_, dtype(), values, 77, edges);
    many.run(ctx(), 0.7, c, e);
    EXPECT_EQ(one.logprobs, many.logprobs);
    EXPECT_EQ(one.entropies, many.entropies);
    EXPECT_TRUE(bit_equal(one.gradient, many.gradient));
  }
}

TEST_P(HeadMemory, LeasesTheScratchItSaysWhateverTheNumberOfRows) {
  for (const std::int64_t chunk_rows : {1, 4, 50}) {
    test::TestContext fresh;
    const auto edges = mixed_edges(9, 33);
    const Tensor x = fresh.random(dtype(), {9, 4}, "x");
    const Tensor weight = fresh.random(dtype(), {33, 4}, "weight");
    const auto zeros = Numbers(static_cast<std::size_t>(edges.edge_count()));
    test::run_head(fresh, x, weight, edges, 1.0, chunk_rows, zeros, zeros);
    const auto promised = logprob_scratch_bytes(dtype(), edges, 33, chunk_rows);
    EXPECT_LE(fresh.scratch().high_water_bytes(), promised);
    EXPECT_GE(fresh.scratch().high_water_bytes(), promised - 128);
    EXPECT_LE(promised, Arena::leased_bytes(dtype(), {std::min<std::int64_t>(chunk_rows, 9), 33}) +
                            Arena::leased_bytes(DType::kF64, {9, 3}) + 1024);
  }
}

TEST_P(Head, AcceptsNoRows) {
  const Tensor x = test_.zeros(dtype(), {0, 4}), weight = test_.zeros(dtype(), {5, 4});
  const auto result = test::run_head(test_, x, weight, HeadEdges(), 1.0, 8, {}, {});
  EXPECT_EQ(values_of(result.dweight), Numbers(20, 0.5));
  EXPECT_EQ(logprob_scratch_bytes(dtype(), HeadEdges(), 5, 8), 0);
}

TEST(HeadEdges, GroupsEdgesByTheRowThatPredicts) {
  const std::vector<PredictionEdge> list{
      {.row = 4, .target = 7, .group = 0, .response = 0, .offset = 0},
      {.row = 4, .target = 7, .group = 0, .response = 1, .offset = 0},
      {.row = 6, .target = 9, .group = 0, .response = 0, .offset = 1}};
  const HeadEdges edges(list);
  EXPECT_THAT(edges.rows, testing::ElementsAre(4, 6));
  EXPECT_THAT(edges.edge_begin, testing::ElementsAre(0, 2, 3));
  EXPECT_THAT(edges.targets, testing::ElementsAre(7, 7, 9));
  const std::vector<PredictionEdge> unsorted{list[2], list[0]};
  EXPECT_THROW(HeadEdges{unsorted}, ContractError);
}

TEST(HeadChunks, HoldAsManyRowsAsTheBudgetAllowsInEqualParts) {
  EXPECT_EQ(logprob_chunk_rows(DType::kF32, 505, 49152, 64 << 20), 253);  // 341 fit: two chunks
  EXPECT_EQ(logprob_chunk_rows(DType::kF64, 505, 49152, 64 << 20), 169);  // 170 fit: three
  EXPECT_EQ(logprob_chunk_rows(DType::kF32, 300, 49152, 64 << 20), 300);
  EXPECT_EQ(logprob_chunk_rows(DType::kF32, 300, 1 << 20, 1), 1);
  EXPECT_EQ(logprob_chunk_rows(DType::kF32, 0, 10, 100), 1);
}

}  // namespace
}  // namespace coppice
