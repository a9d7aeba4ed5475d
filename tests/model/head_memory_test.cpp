// Check 23, measured: what the head really leases, with a scratch arena of its own. It depends on
// the rows that predict and on the chunk, and on nothing else.
#include <gtest/gtest.h>

#include "model/tiny_models.hpp"

namespace coppice {
namespace {

using namespace test;

struct Room {
  explicit Room(TinyModel& model) : arena(model.memory(), "head"), ctx(model.ctx()) {}
  Arena arena;
  ExecContext& ctx;
  ExecContext with_arena() { return {ctx.stream, ctx.memory, arena, ctx.threads}; }
};

// Forward and backward of the head behind a prompt of `prefix` tokens and two responses of 20.
std::int64_t head_bytes_behind(std::int64_t prefix) {
  ModelConfig config = config_of(all_tiny_cases()[0]);
  config.max_position_embeddings = 1 << 13;
  TinyModel model(config, DType::kF32);
  const Tokens response(20, 3);
  const PackedBatch batch =
      grouped({{Tokens(static_cast<std::size_t>(prefix), 1), {{response}, {response}}}});
  PolicyModel::Activations acts(model.memory());
  model->forward(model.ctx(), batch, Recompute::kNone, acts);
  Room head(model);
  ExecContext ctx = head.with_arena();
  std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
  model->head_forward(ctx, acts, 1.0, logprobs, entropies);
  model->head_backward(ctx, acts, 1.0, logprobs, entropies);
  return head.arena.high_water_bytes();
}

// Seen red with a copy of the residual stream leased in the head's backward.
TEST(HeadMemory, IsTheSameToTheByteBehindAnyPrefix) {
  const std::int64_t bytes = head_bytes_behind(1);
  // 39 rows predict (20 tokens twice, the first from one row); their logits at least are held.
  EXPECT_GE(bytes, 39 * 61 * 4);
  for (const std::int64_t prefix : {2, 63, 64, 1000, 4097})
    EXPECT_EQ(head_bytes_behind(prefix), bytes);
}

// 256 head rows with an edge each, a vocabulary of 1009, chunks of 16 to 256 rows. Multiples of 16
// rows, so that alignment to 64 bytes rounds nothing.
// Seen red with the logits of all rows leased beside those of a chunk.
TEST(HeadMemory, GrowsByTheSameBytesWithEveryRowOfTheChunk) {
  constexpr std::int64_t kRows = 256, kVocabulary = 1009, kWidth = 24;
  std::vector<PredictionEdge> edges;
  for (std::int64_t row = 0; row < kRows; ++row)
    edges.push_back({row, static_cast<std::int32_t>(row), 0, 0, 0});
  const HeadEdges head_edges(edges);
  const auto bytes_of = [&](std::int64_t chunk_rows) {
    TestContext test(1);
    const Tensor x = test.random(DType::kF32, {kRows, kWidth}, "x");
    const Tensor weight = test.random(DType::kF32, {kVocabulary, kWidth}, "weight");
    Tensor dx = test.zeros(DType::kF32, {kRows, kWidth});
    Tensor dweight = test.zeros(DType::kF32, {kVocabulary, kWidth});
    std::vector<double> logprobs(kRows), entropies(kRows);
    logprob_forward_backward(
        test.ctx(), x, weight, head_edges, 1.0, chunk_rows,
        [](std::int64_t, std::span<const double>, std::span<const double>, std::span<double> c,
           std::span<double>) { std::fill(c.begin(), c.end(), 1.0); },
        logprobs, entropies, dx, dweight.view());
    return test.scratch().high_water_bytes();
  };
  const std::int64_t first = bytes_of(16), per_16_rows = bytes_of(32) - first;
  // Logits in f32; three statistics, an edge's target, c, e and figures in f64: nothing else.
  EXPECT_GE(per_16_rows, 16 * kVocabulary * 4);
  EXPECT_LE(per_16_rows, 16 * (kVocabulary * 4 + 8 * 8));
  EXPECT_LE(first, per_16_rows + 512);
  for (const std::int64_t rows : {48, 128, 256})
    EXPECT_EQ(bytes_of(rows), first + (rows / 16 - 1) * per_16_rows) << rows;
}

}  // namespace
}  // namespace coppice
