// What the CUDA kernels of prefix attention compute, on a real device or the emulated one: errors
// at most twice those of the plain method in bf16. On the emulated device every access is checked
// for races, bounds and copies not waited for. That rows cannot influence each other where they
// should not is in prefix_attention_cuda_isolation_test.cpp.
#include <gtest/gtest.h>

#include <limits>
#include <memory>

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

// Mutations seen: rows of 96 swizzled by their last bits, the others not at all.
TEST_P(PrefixAttentionCudaDim, LoadsMatricesWithoutBankConflicts) {
  if constexpr (!build::kEmulatedDevice) return;
  const auto before = emulated::gpu().statistics;
  const auto problem = test::device_problem(70, 70, {1, 1, GetParam()});
  test::run(device_, AttentionPlan(test::group(50, {20})), problem);
  const auto after = emulated::gpu().statistics;
  EXPECT_GT(after.matrix_loads, before.matrix_loads);
  EXPECT_EQ(after.matrix_load_passes - before.matrix_load_passes,
            after.matrix_loads - before.matrix_loads);
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
// added to what is there. Query rows need not be key rows. Mutation seen: f32 gradients
// overwritten.
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

}  // namespace
}  // namespace coppice
