// Long prompts on a tiny model: nothing may grow faster than the rows but the time, which follows
// the visible pairs (bench/long_context.py measures that, and 32K). What a plan says holds to the
// byte at the lengths that run here, so that longer ones may be asked of the plan alone.
#include <gtest/gtest.h>

#include "model/memory_plan.hpp"
#include "model/pass_difference.hpp"
#include "model/tiny_models.hpp"

namespace coppice {
namespace {

using namespace test;

constexpr std::int64_t kVocabulary = 61;

ModelConfig long_config() {
  ModelConfig config = config_of({"Llama", true, 4, 2, 16, kVocabulary});
  config.max_position_embeddings = std::int64_t{1} << 18;
  return config;
}

Tokens tokens(const std::string& name, std::int64_t count) {
  const RandomStream stream(17, name);
  Tokens ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(
        static_cast<std::int32_t>(stream.below(kVocabulary, static_cast<std::uint64_t>(i))));
  return ids;
}

std::vector<TinyGroup> one_group(std::int64_t prefix, std::int64_t response, int group_size) {
  TinyGroup group{tokens("prompt", prefix), {}};
  for (int i = 0; i < group_size; ++i)
    group.responses.push_back({tokens(fmt::format("response {}", i), response)});
  return {group};
}

std::int64_t planned_bytes(const PackedBatch& batch) {
  MemoryPlanner planner(long_config(), DType::kF32, PassKind::kTrain, Recompute::kNone, 2);
  planner.add(batch);
  std::int64_t sum = 0;
  for (const MemoryLine& line : planner.plan().lines)
    if (line.name != "moments") sum += line.bytes;  // no optimizer here
  return sum;
}

// P = 4K and 8K, R = 512, G = 4: rows grow from 6144 to 10240. Weights and the head, which sees
// responses only, do not grow, so the ratio of peaks is below that of the rows.
// Seen red with scratch of rows x rows / 4 leased in a forward.
TEST(LongContext, PeakMemoryIsThatOfThePlanAndGrowsNoFasterThanTheRows) {
  std::int64_t peaks[2], rows[2];
  for (int i = 0; i < 2; ++i) {
    TinyModel model(long_config(), DType::kF32, 2);
    const PackedBatch batch = grouped(one_group(4096 << i, 512, 4));
    run_pass(model, batch);
    rows[i] = batch.rows();
    peaks[i] = model.memory().peak_bytes();
    EXPECT_EQ(peaks[i], planned_bytes(batch));
  }
  EXPECT_EQ(rows[0], 6144);
  EXPECT_EQ(rows[1], 10240);
  EXPECT_LE(static_cast<double>(peaks[1]) / static_cast<double>(peaks[0]), 10240.0 / 6144.0);
}

// From 32K to 128K each doubling of the prefix adds what its rows take, and no more.
TEST(LongContext, PlannedMemoryIsLinearInRowsUpToOneHundredThousand) {
  const auto bytes = [](std::int64_t prefix) {
    return planned_bytes(grouped(one_group(prefix, 512, 4)));
  };
  const std::int64_t at_32k = bytes(32 << 10), at_64k = bytes(64 << 10), at_128k = bytes(128 << 10);
  const auto per_row = static_cast<double>(at_64k - at_32k) / (32 << 10);
  EXPECT_LE(static_cast<double>(at_128k - at_64k) / (64 << 10), per_row * 1.001);
  // A row's activations and scratch of two layers of width 24: some kilobytes.
  EXPECT_LT(per_row, 16384);
}

// A prefix of many tiles, every log-prob and every gradient, at the strict bounds.
TEST(LongContext, GroupedEqualsRepeatedBehindAPrefixOfThousands) {
  TinyModel model(long_config(), DType::kF64, 2);
  const auto groups = one_group(2047, 65, 3);
  const PassResult once = run_pass(model, grouped(groups));
  const PassDifference found = difference(once, run_pass(model, repeated(groups)));
  EXPECT_LE(found.largest_logprob, 1e-12);
  EXPECT_LE(found.worst_gradient, 1e-12);
  EXPECT_LE(found.whole_gradient, 1e-12);
}

}  // namespace
}  // namespace coppice
