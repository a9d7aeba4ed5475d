// Whom a row's results may depend on in the CUDA kernels, bit for bit: its ancestors and the rows
// up to itself, and nothing else in the micro-batch, nor the order in which threads run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/device_attention.hpp"
#include "core/build_config.hpp"
#include "core/cuda/emulated/gpu.hpp"

namespace coppice {
namespace {

using test::DeviceContext;
using test::DeviceProblem;
using test::DeviceResult;
using test::Heads;
using Tree = std::vector<reference::TreeSegment>;

class PrefixAttentionCudaIsolation : public testing::Test {
 protected:
  static void spoil(std::vector<BF16>& x, const DeviceProblem& p, std::int64_t heads,
                    std::int64_t begin, std::int64_t rows, std::uint16_t bits) {
    const auto width = heads * p.heads.dim;
    std::fill_n(x.begin() + begin * width, rows * width, BF16{bits});
  }
  /// Overwrites rows of q, k, v and d_out.
  static DeviceProblem spoiled(DeviceProblem p, std::int64_t begin, std::int64_t rows,
                               std::uint16_t bits) {
    spoil(p.q, p, p.heads.query, begin, rows, bits);
    spoil(p.d_out, p, p.heads.query, begin, rows, bits);
    spoil(p.k, p, p.heads.kv, begin, rows, bits);
    spoil(p.v, p, p.heads.kv, begin, rows, bits);
    return p;
  }

  static bool same(const std::vector<std::byte>& a, std::int64_t a_begin,
                   const std::vector<std::byte>& b, std::int64_t b_begin, std::int64_t rows,
                   std::int64_t row_bytes) {
    return std::equal(a.begin() + a_begin * row_bytes, a.begin() + (a_begin + rows) * row_bytes,
                      b.begin() + b_begin * row_bytes);
  }
  static void expect_same_rows(const DeviceProblem& p, const DeviceResult& a, const DeviceResult& b,
                               std::int64_t begin, std::int64_t rows, const std::string& what) {
    const auto width = 2 * p.heads.query * p.heads.dim;
    EXPECT_TRUE(same(a.out, begin, b.out, begin, rows, width)) << what << ": out";
    EXPECT_TRUE(same(a.dq, begin, b.dq, begin, rows, width)) << what << ": dq";
    for (std::int64_t head = 0; head < p.heads.query; ++head) {
      const auto at = head * p.queries + begin;
      EXPECT_TRUE(same(a.softmax_lse, at, b.softmax_lse, at, rows, 4)) << what << ": lse";
    }
  }
  static void expect_same_keys(const DeviceProblem& p, const DeviceResult& a, const DeviceResult& b,
                               std::int64_t begin, std::int64_t rows, const std::string& what) {
    const auto width = 2 * p.heads.kv * p.heads.dim;
    EXPECT_TRUE(same(a.dk, begin, b.dk, begin, rows, width)) << what << ": dk";
    EXPECT_TRUE(same(a.dv, begin, b.dv, begin, rows, width)) << what << ": dv";
  }
  static void expect_all_nan(const std::vector<std::byte>& bytes, std::int64_t begin,
                             std::int64_t count, const std::string& what) {
    const auto values = test::bf16_values(bytes);
    for (auto i = begin; i < begin + count; ++i) {
      ASSERT_TRUE(std::isnan(values[static_cast<std::size_t>(i)])) << what << ", element " << i;
    }
  }

  DeviceContext device_;
};

constexpr std::uint16_t kBf16Nan = 0x7fc0, kBf16Infinity = 0xff80;

TEST_F(PrefixAttentionCudaIsolation, ChangingOneResponseLeavesItsSiblingsAlone) {
  const std::int64_t prompt = 50;
  const auto problem = test::device_problem(prompt + 88, prompt + 88, {2, 1, 64});
  const AttentionPlan plan(test::group(prompt, {33, 35, 20}));
  const auto clean = test::run(device_, plan, problem);
  for (const std::uint16_t bits : {std::uint16_t{0x40e0}, kBf16Nan, kBf16Infinity}) {
    const auto changed = test::run(device_, plan, spoiled(problem, prompt + 33, 35, bits));
    expect_same_rows(problem, clean, changed, 0, prompt + 33, "prompt and response 0");
    expect_same_rows(problem, clean, changed, prompt + 68, 20, "response 2");
    expect_same_keys(problem, clean, changed, prompt, 33, "response 0");
    expect_same_keys(problem, clean, changed, prompt + 68, 20, "response 2");
    EXPECT_NE(clean.dv, changed.dv);
  }
}

TEST_F(PrefixAttentionCudaIsolation, GarbageInLaterRowsReachesThoseThatSeeItAndNoOther) {
  for (const std::int64_t dim : {64, 96}) {
    const std::int64_t prompt = 20, length = 75, rows = prompt + length;
    const auto problem = test::device_problem(rows, rows, {1, 1, dim});
    const AttentionPlan plan(test::group(prompt, {length}));
    const auto clean = test::run(device_, plan, problem);
    for (const std::int64_t kept : {1, 13, 64, 70}) {
      for (const std::uint16_t bits : {kBf16Nan, kBf16Infinity}) {
        const auto begin = prompt + kept;
        const auto changed = test::run(device_, plan, spoiled(problem, begin, rows - begin, bits));
        const auto what = fmt::format("dim {}, {} rows kept", dim, kept);
        expect_same_rows(problem, clean, changed, 0, begin, what);
        expect_all_nan(changed.out, begin * dim, (rows - begin) * dim, what + ": out");
        expect_all_nan(changed.dq, begin * dim, (rows - begin) * dim, what + ": dq");
        // Their dO reaches the keys that they see: all of them.
        expect_all_nan(changed.dv, 0, rows * dim, what + ": dv");
      }
    }
  }
}

TEST_F(PrefixAttentionCudaIsolation, GarbageInEarlierQueriesCannotReachLaterKeys) {
  const std::int64_t rows = 140;
  const auto problem = test::device_problem(rows, rows, {2, 1, 64});
  const AttentionPlan plan(test::forest_of({{rows, -1}}));
  const auto clean = test::run(device_, plan, problem);
  for (const std::int64_t spoiled_rows : {1, 13, 64, 70}) {
    auto changed_problem = problem;
    spoil(changed_problem.q, problem, 2, 0, spoiled_rows, kBf16Nan);
    spoil(changed_problem.d_out, problem, 2, 0, spoiled_rows, kBf16Nan);
    const auto changed = test::run(device_, plan, changed_problem);
    const auto what = fmt::format("{} rows", spoiled_rows);
    expect_same_keys(problem, clean, changed, spoiled_rows, rows - spoiled_rows, what);
    expect_same_rows(problem, clean, changed, spoiled_rows, rows - spoiled_rows, what);
    expect_all_nan(changed.dk, 0, spoiled_rows * 64, what + ": dk");
    expect_all_nan(changed.dv, 0, spoiled_rows * 64, what + ": dv");
  }
}

TEST_F(PrefixAttentionCudaIsolation, AGroupDoesNotDependOnTheGroupsBesideIt) {
  const Heads heads{2, 1, 64};
  const Tree group{{65, -1}, {33, 0}, {1, 0}, {3, 2}};
  const std::int64_t rows = 102, before = 37, after = 29;
  Tree tree = group;
  tree.insert(tree.begin(), {before, -1});
  for (std::size_t s = 1; s < tree.size(); ++s) tree[s].parent += tree[s].parent < 0 ? 0 : 1;
  tree.push_back({after, -1});
  const auto all = before + rows + after;
  const auto among = test::device_problem(all, all, heads);
  auto alone = test::device_problem(rows, rows, heads);
  const auto take = [&](const std::vector<BF16>& x, std::int64_t of) {
    const auto width = of * heads.dim;
    return std::vector<BF16>(x.begin() + before * width, x.begin() + (before + rows) * width);
  };
  alone.q = take(among.q, 2), alone.d_out = take(among.d_out, 2);
  alone.k = take(among.k, 1), alone.v = take(among.v, 1);
  const auto a = test::run(device_, AttentionPlan(test::forest_of(group)), alone);
  const auto b = test::run(device_, AttentionPlan(test::forest_of(tree)), among);
  EXPECT_TRUE(same(a.out, 0, b.out, before, rows, 2 * 2 * 64));
  EXPECT_TRUE(same(a.dq, 0, b.dq, before, rows, 2 * 2 * 64));
  EXPECT_TRUE(same(a.dk, 0, b.dk, before, rows, 2 * 64));
  EXPECT_TRUE(same(a.dv, 0, b.dv, before, rows, 2 * 64));
}

TEST_F(PrefixAttentionCudaIsolation, NeitherRunsNorTheOrderOfThreadsChangeABit) {
  const auto problem = test::device_problem(131, 131, {2, 1, 64});
  const AttentionPlan plan(test::forest_of({{70, -1}, {33, 0}, {2, 0}, {26, -1}}));
  const auto first = test::run(device_, plan, problem);
  EXPECT_EQ(first, test::run(device_, plan, problem));
  if constexpr (build::kEmulatedDevice) {
    auto& options = emulated::gpu().options;
    const auto before = options;
    for (const std::uint64_t seed : {2, 3}) {
      for (const auto schedule : {emulated::Schedule::kRandom, emulated::Schedule::kRunAhead}) {
        options.seed = seed;
        options.schedule = schedule;
        EXPECT_EQ(first, test::run(device_, plan, problem)) << "seed " << seed;
      }
    }
    options = before;
  }
}

}  // namespace
}  // namespace coppice
