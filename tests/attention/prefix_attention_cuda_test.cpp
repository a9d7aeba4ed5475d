// What the CUDA kernels of prefix attention compute, on a real device or the emulated one: errors
// at most twice those of the plain method in bf16, garbage that stays in its row, the same bits
// every time. On the emulated device every access is checked for races, bounds and copies not
// waited for.
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "attention/device_attention.hpp"
#include "core/cuda/emulated/gpu.hpp"

namespace coppice {
namespace {

using test::DeviceContext;
using test::DeviceProblem;
using test::DeviceResult;
using test::Heads;
using Tree = std::vector<reference::TreeSegment>;
using Mask = std::vector<std::vector<int>>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class PrefixAttentionCuda : public testing::Test {
 protected:
  /// Compares with the reference; the bound is twice the error of the plain method.
  static void expect_right(const DeviceProblem& problem, const DeviceResult& result, Mask mask,
                           const std::string& what) {
    const auto expected = test::expectation(problem, std::move(mask));
    const auto [out, lse, dq, dk, dv] = test::errors(result, expected);
    EXPECT_LE(out, expected.bounds.out) << what;
    EXPECT_LE(lse, expected.bounds.lse) << what;
    EXPECT_LE(dq, expected.bounds.dq) << what;
    EXPECT_LE(dk, expected.bounds.dk) << what;
    EXPECT_LE(dv, expected.bounds.dv) << what;
  }

  void expect_right(const Tree& tree, Heads heads, const std::string& what) {
    const auto forest = test::forest_of(tree);
    const auto problem = test::device_problem(forest.rows(), forest.rows(), heads);
    expect_right(problem, test::run(device_, AttentionPlan(forest), problem),
                 reference::visibility(tree), what);
  }

  DeviceContext device_;
};

class PrefixAttentionCudaDim : public PrefixAttentionCuda,
                               public testing::WithParamInterface<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(HeadDims, PrefixAttentionCudaDim, testing::Values(64, 96, 128),
                         [](const auto& made_for) { return std::to_string(made_for.param); });

// What notices which mistake is in prefix_attention_cuda_mutation_test.cpp.
TEST_P(PrefixAttentionCudaDim, ErrsAtMostTwiceAsMuchAsThePlainMethod) {
  expect_right(test::group_tree(70, {33, 0, 1, 17}), {2, 1, GetParam()}, "a group");
  expect_right(test::group_tree(129, {65}), {1, 1, GetParam()}, "one response");
  expect_right({{20, -1}, {64, 0}, {3, 1}, {9, 1}, {1, 0}, {63, -1}, {5, 5}}, {3, 1, GetParam()},
               "a forest");
}

TEST_F(PrefixAttentionCuda, IsRightAroundTileEdges) {
  const Heads heads{1, 1, 64};
  expect_right({{1, -1}}, heads, "one row");
  expect_right(test::group_tree(1, {1, 1}), heads, "a prompt of one row");
  for (const std::int64_t prompt : {31, 63, 64, 65, 127, 128}) {
    expect_right(test::group_tree(prompt, {1, 0, 64}), heads, fmt::format("prompt {}", prompt));
  }
  for (const std::int64_t response : {17, 63, 65, 127, 128, 129}) {
    expect_right(test::group_tree(13, {response, 2}), heads, fmt::format("response {}", response));
  }
}

TEST_F(PrefixAttentionCuda, IsRightForEveryRatioOfHeads) {
  for (const auto& [query, kv] : {std::pair{2, 2}, {4, 1}, {6, 2}}) {
    expect_right(test::group_tree(37, {17, 5}), {query, kv, 64},
                 fmt::format("{} query heads, {} key-value heads", query, kv));
  }
}

/// 20 keys that 1040 rows see, with 4 heads each: enough for their sums to be split over two
/// blocks.
AttentionPlan wide_plan() {
  const std::vector<std::int64_t> space_rows{20};
  const std::vector<PlanRectangle> rectangles{{0, 1040, 0, 0, 20, coppice::Mask::kFull}};
  return AttentionPlan(1040, space_rows, rectangles);
}
constexpr Heads kWideHeads{4, 1, 64};

// Mutation seen: the second slot not added.
TEST_F(PrefixAttentionCuda, AddsThePartialSumsOfAKeyTile) {
  const auto problem = test::device_problem(1040, 20, kWideHeads);
  expect_right(problem, test::run(device_, wide_plan(), problem),
               Mask(1040, std::vector<int>(20, 1)), "wide");
}

Tensor gradients(DeviceContext& device, DType dtype, Shape shape, double value) {
  const auto count = static_cast<std::size_t>(shape.numel());
  if (dtype == DType::kF32) {
    return device.f32(shape, std::vector<float>(count, static_cast<float>(value)));
  }
  return device.bf16(shape, std::vector<BF16>(count, to_bf16(value)));
}

// New rows over a kept prompt (space 0) and over themselves (space 1); the prompt's gradients are
// added to what is there. Query rows need not be key rows. Mutation seen: f32 gradients overwritten.
TEST_F(PrefixAttentionCuda, AddsToTheGradientsOfASpaceInItsDtype) {
  constexpr std::int64_t kKept = 70, kNew = 37, kUnseen = 3;
  const Heads heads{2, 1, 64};
  const std::vector<std::int64_t> space_rows{kKept + kUnseen, kNew};
  const std::vector<PlanRectangle> rectangles{{0, kNew, 0, 0, kKept, coppice::Mask::kFull},
                                              {0, kNew, 1, 0, kNew, coppice::Mask::kCausal}};
  // Two query rows more, which see nothing.
  const AttentionPlan plan(kNew + 2, space_rows, rectangles);
  const auto problem = test::device_problem(kNew + 2, kKept + kNew, heads);
  Mask mask(kNew + 2, std::vector<int>(kKept + kNew));
  for (std::size_t row = 0; row < kNew; ++row) {
    for (std::size_t key = 0; key <= kKept + row; ++key) mask[row][key] = 1;
  }
  const auto [expected, right, bounds] = test::expectation(problem, mask);

  // Space 0 holds the kept keys and three that nobody sees.
  const auto part = [](const std::vector<BF16>& x, std::int64_t begin, std::int64_t rows) {
    return std::vector<BF16>(x.begin() + begin * 64, x.begin() + (begin + rows) * 64);
  };
  const auto kept = [&](const std::vector<BF16>& x) {
    auto rows = part(x, 0, kKept);
    rows.resize((kKept + kUnseen) * 64, BF16{0x7fff});
    return rows;
  };
  const Shape old_shape{kKept + kUnseen, 1, 64}, new_shape{kNew, 1, 64};
  const Shape query_shape{kNew + 2, 2, 64};
  const Tensor q = device_.bf16(query_shape, problem.q);
  const Tensor d_out_tensor = device_.bf16(query_shape, problem.d_out);
  const Tensor k0 = device_.bf16(old_shape, kept(problem.k));
  const Tensor v0 = device_.bf16(old_shape, kept(problem.v));
  const Tensor k1 = device_.bf16(new_shape, part(problem.k, kKept, kNew));
  const Tensor v1 = device_.bf16(new_shape, part(problem.v, kKept, kNew));
  const KeySpace spaces[] = {{k0, v0}, {k1, v1}};
  Tensor out = device_.unset(DType::kBF16, query_shape);
  Tensor lse = device_.unset(DType::kF32, {2, kNew + 2});
  prefix_attention_forward(device_.ctx(), plan, q, spaces, problem.scale, out, lse);
  EXPECT_LE(test::relative_difference(device_.values_of(out), expected.out), bounds.out);
  const auto lse_values = device_.values_of(lse);
  EXPECT_EQ(lse_values[kNew], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(lse_values[2 * (kNew + 2) - 1], -std::numeric_limits<double>::infinity());

  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor dq = device_.unset(DType::kBF16, query_shape);
    Tensor dk0 = gradients(device_, dtype, old_shape, 0.5);
    Tensor dv0 = gradients(device_, dtype, old_shape, -0.25);
    Tensor dk1 = gradients(device_, dtype, new_shape, kNan);
    Tensor dv1 = gradients(device_, dtype, new_shape, kNan);
    const KeySpaceGrad grads[] = {{dk0, dv0, 1.0}, {dk1, dv1, 0.0}};
    prefix_attention_backward(device_.ctx(), plan, q, spaces, out, lse, d_out_tensor, problem.scale,
                              dq, grads);
    EXPECT_LE(test::relative_difference(device_.values_of(dq), right.dq), bounds.dq);
    const auto joined = [&](const Tensor& old_rows, const Tensor& new_rows, double added) {
      auto values = device_.values_of(old_rows);
      for (double& x : values) x -= added;
      for (std::size_t i = kKept * 64; i < values.size(); ++i) EXPECT_EQ(values[i], 0);
      values.resize(kKept * 64);
      const auto rest = device_.values_of(new_rows);
      values.insert(values.end(), rest.begin(), rest.end());
      return values;
    };
    // Adding in bf16 rounds twice, to an element that is a little larger than the sum.
    const double rounding = dtype == DType::kBF16 ? 0x1p-8 : 0;
    EXPECT_LE(test::relative_difference(joined(dk0, dk1, 0.5), right.dk), bounds.dk + rounding);
    EXPECT_LE(test::relative_difference(joined(dv0, dv1, -0.25), right.dv), bounds.dv + rounding);

    // A space that does not learn changes nothing else.
    Tensor dq_again = device_.unset(DType::kBF16, query_shape);
    Tensor dk_again = gradients(device_, dtype, new_shape, kNan);
    Tensor dv_again = gradients(device_, dtype, new_shape, kNan);
    const KeySpaceGrad fixed[] = {{}, {dk_again, dv_again, 0.0}};
    prefix_attention_backward(device_.ctx(), plan, q, spaces, out, lse, d_out_tensor, problem.scale,
                              dq_again, fixed);
    EXPECT_EQ(device_.bytes_of(dq), device_.bytes_of(dq_again));
    EXPECT_EQ(device_.bytes_of(dk1), device_.bytes_of(dk_again));
    EXPECT_EQ(device_.bytes_of(dv1), device_.bytes_of(dv_again));
  }
}

// The emulated device takes it ill when a byte is written twice.
TEST_F(PrefixAttentionCuda, WritesEachByteOfItsResultsOnce) {
  if constexpr (!build::kEmulatedDevice) return;
  const auto expect_written_once = [&](const AttentionPlan& plan, Heads heads) {
    const auto queries = plan.query_rows(), keys = plan.space_rows(0);
    const auto problem = test::device_problem(queries, keys, heads);
    const Shape query_shape{queries, heads.query, heads.dim}, key_shape{keys, heads.kv, heads.dim};
    const Tensor q = device_.bf16(query_shape, problem.q);
    const Tensor d_out = device_.bf16(query_shape, problem.d_out);
    const Tensor k = device_.bf16(key_shape, problem.k), v = device_.bf16(key_shape, problem.v);
    Tensor out = device_.unset(DType::kBF16, query_shape);
    Tensor dq = device_.unset(DType::kBF16, query_shape);
    Tensor dk = device_.unset(DType::kF32, key_shape), dv = device_.unset(DType::kF32, key_shape);
    Tensor lse = device_.unset(DType::kF32, {heads.query, queries});
    device_.ctx().stream.synchronize();
    std::vector<std::unique_ptr<emulated::WriteWatch>> watches;
    for (const Tensor* x : {&out, &lse, &dq, &dk, &dv}) {
      watches.push_back(std::make_unique<emulated::WriteWatch>(x->view().bytes(), x->size_bytes()));
    }
    const KeySpace space{k, v};
    const KeySpaceGrad grad{dk, dv};
    prefix_attention_forward(device_.ctx(), plan, q, {&space, 1}, problem.scale, out, lse);
    prefix_attention_backward(device_.ctx(), plan, q, {&space, 1}, out, lse, d_out, problem.scale,
                              dq, {&grad, 1});
    device_.ctx().stream.synchronize();
    for (const auto& watch : watches) EXPECT_EQ(watch->unwritten_bytes(), 0);
  };
  expect_written_once(AttentionPlan(test::group(65, {33, 1})), {2, 1, 64});
  expect_written_once(wide_plan(), kWideHeads);
}

// What `coppice plan` says of scratch. Mutation seen: forward's bytes given for backward.
TEST_F(PrefixAttentionCuda, LeasesAsMuchScratchAsItSays) {
  const auto expect_leased = [](const AttentionPlan& plan, Heads heads) {
    DeviceContext device;
    test::run(device, plan, test::device_problem(plan.query_rows(), plan.space_rows(0), heads));
    const auto forward = prefix_attention_forward_scratch_bytes(plan, heads.query, heads.kv,
                                                                heads.dim, DType::kBF16, 1);
    const auto backward = prefix_attention_backward_scratch_bytes(plan, heads.query, heads.kv,
                                                                  heads.dim, DType::kBF16, 1);
    EXPECT_EQ(device.ctx().scratch.high_water_bytes(), std::max(forward, backward));
  };
  expect_leased(AttentionPlan(test::group(65, {33, 1})), {2, 1, 128});
  expect_leased(wide_plan(), kWideHeads);
}

TEST_F(PrefixAttentionCuda, TakesNoRowsAndNoSpaces) {
  const auto nothing = test::device_problem(0, 0, {2, 1, 64});
  test::run(device_, AttentionPlan(test::group(0, {0, 0})), nothing);
  const auto problem = test::device_problem(3, 0, {2, 2, 64});
  const Tensor q = device_.bf16({3, 2, 64}, problem.q);
  Tensor out = device_.unset(DType::kBF16, {3, 2, 64}),
         dq = device_.unset(DType::kBF16, {3, 2, 64});
  Tensor lse = device_.unset(DType::kF32, {2, 3});
  const AttentionPlan plan(3, {}, {});
  prefix_attention_forward(device_.ctx(), plan, q, {}, problem.scale, out, lse);
  prefix_attention_backward(device_.ctx(), plan, q, {}, out, lse, q, problem.scale, dq, {});
  for (const double x : device_.values_of(out)) EXPECT_EQ(x, 0);
  for (const double x : device_.values_of(dq)) EXPECT_EQ(x, 0);
}

TEST_F(PrefixAttentionCuda, RefusesAHeadDimWithoutAKernel) {
  const auto problem = test::device_problem(3, 3, {1, 1, 80});
  EXPECT_THROW(test::run(device_, AttentionPlan(test::group(3, {})), problem), ContractError);
}

// Whom a row's results may depend on, bit for bit.
class PrefixAttentionCudaIsolation : public PrefixAttentionCuda {
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
