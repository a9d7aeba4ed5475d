#pragma once
// Attention of packed query rows over the key spaces of a plan. Shared prefixes, repeated ones,
// plain sequences, trees and cached keys differ only in their plan. Positions are not known here:
// q and k arrive rotated.
#include <array>
#include <span>

#include "attention/attention_plan.hpp"
#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// What kernels are compiled for on CUDA; the CPU takes any.
inline constexpr std::array<std::int64_t, 3> kCudaHeadDims{64, 96, 128};

/// Keys and values of one key space.
struct KeySpace {
  ConstTensorView k, v;  // [K_s, Hkv, D]
};

/// Where the gradients of one key space go. Those of bf16 keys may be bf16 or, where several calls
/// add to them, f32.
struct KeySpaceGrad {
  TensorView dk, dv;  // [K_s, Hkv, D]; both default-made: this space does not learn
  double beta = 0.0;  // 0 overwrites every row, 1 adds
};

/// Attention, forward.
///
///   A row sees every row of its ancestor segments and its own segment up to itself, as the plan
///   says. Siblings never see each other. A row that sees nothing gets output 0 and LSE -inf.
///
/// Shapes    q, out [T, Hq, D]   one KeySpace per space of the plan   softmax_lse [Hq, T]
/// Layout    rows in packed (depth-first) order; last axis contiguous, others may be strided
/// Dtypes    CPU: all f32 or all f64; accumulation in the same. CUDA: all bf16 but for softmax_lse
///           (f32); accumulation in f32; head dims kCudaHeadDims; rows and heads 16 bytes aligned
/// Units     softmax_lse is a natural logarithm; softmax_scale multiplies q.k
/// Parallel  local to the rank: Hq, Hkv are this rank's heads; no communication
/// Memory    scratch as told by prefix_attention_*_scratch_bytes(); allocates nothing else
/// Effects   overwrites out and softmax_lse
/// Errors    ContractError if shapes, dtypes or devices disagree, or Hq % Hkv != 0
/// Repeats   bitwise, for any thread count and whatever groups or siblings share the plan; rows
///           that a row does not see cannot change a bit of its results, not even by NaN
/// Source    Prefix Grouper, arXiv:2506.05433; FlashAttention-2, arXiv:2307.08691
/// Oracle    tests/attention/prefix_attention_test.cpp, tests/reference/naive_attention.hpp
void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse);

/// Attention, backward. Needs only the merged output and LSE of forward: probabilities are
/// computed again.
///
///   The gradient of a shared key is the plain sum over all rows that see it.
///
/// Shapes    dq [T, Hq, D]   one KeySpaceGrad per space of the plan   the rest as in forward
/// Effects   overwrites dq; dk and dv as their space's beta says
/// Repeats   as forward, dk and dv included: one owner per key tile, a fixed order, no atomics
void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads);

/// What one call leases from ctx.scratch, exactly, for this plan: on CUDA for bf16 (of backward,
/// the most: every space learns), on the CPU for the other dtypes.
std::int64_t prefix_attention_forward_scratch_bytes(const AttentionPlan& plan,
                                                    std::int64_t num_attention_heads,
                                                    std::int64_t num_key_value_heads,
                                                    std::int64_t head_dim, DType dtype,
                                                    int threads);
std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan,
                                                     std::int64_t num_attention_heads,
                                                     std::int64_t num_key_value_heads,
                                                     std::int64_t head_dim, DType dtype,
                                                     int threads);

namespace cpu {
void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse);
void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads);
std::int64_t prefix_attention_forward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                    std::int64_t kv_heads, std::int64_t dim,
                                                    DType dtype, int threads);
std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                     std::int64_t kv_heads, std::int64_t dim,
                                                     DType dtype, int threads);
}  // namespace cpu
namespace cuda {
void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse);
void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads);
std::int64_t prefix_attention_forward_scratch_bytes(const AttentionPlan& plan, std::int64_t dim);
std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                     std::int64_t kv_heads, std::int64_t dim);
}  // namespace cuda

}  // namespace coppice
