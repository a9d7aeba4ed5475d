#pragma once
// Trees, packed numbers and the double reference, put together the way every attention test needs
// them.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "attention/prefix_attention.hpp"
#include "reference/naive_attention.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

/// One prompt with responses below it.
PrefixForest group(std::int64_t prompt, const std::vector<std::int64_t>& responses);
std::vector<reference::TreeSegment> group_tree(std::int64_t prompt,
                                               const std::vector<std::int64_t>& responses);
PrefixForest forest_of(const std::vector<reference::TreeSegment>& tree);
/// Up to `segments` segments of up to `longest` rows, of any depth, some empty.
std::vector<reference::TreeSegment> random_tree(std::uint64_t seed, int segments,
                                                std::int64_t longest);
std::int64_t count(const std::vector<std::vector<int>>& mask);

struct Heads {
  std::int64_t query, kv, dim;
};

/// Random q, k, v and d_out of one key space, and room for what attention computes from them.
struct AttentionData {
  Tensor q, k, v, d_out;    // [T, Hq, D], [K, Hkv, D] twice, [T, Hq, D]
  Tensor out, softmax_lse;  // results; NaN until computed
  Tensor dq, dk, dv;
  double scale;
};
AttentionData attention_data(TestContext& test, DType dtype, std::int64_t queries,
                             std::int64_t keys, Heads heads, std::string_view name = "attention");

/// Forward and backward over one key space.
void run(ExecContext& ctx, const AttentionPlan& plan, AttentionData& data);

/// The same problem for the reference.
reference::AttentionProblem problem_of(const AttentionData& data,
                                       std::vector<std::vector<int>> mask);

/// Largest relative L2 difference of each result from the reference under `mask`.
struct Differences {
  double out, lse, dq, dk, dv;
  double largest() const;
};
Differences differences(const AttentionData& data, std::vector<std::vector<int>> mask);

/// Copies elements between tensors of one shape and dtype, whatever their strides.
void copy(ConstTensorView from, TensorView to);
void fill(TensorView x, double value);

/// "CpuF32" or "CpuF64", for INSTANTIATE_TEST_SUITE_P.
std::string dtype_name(const testing::TestParamInfo<DType>& made_for);

/// c eps sqrt(K) with the project's c = 8: what summing K products may lose.
double tolerance(DType dtype, std::int64_t terms);

}  // namespace coppice::test
