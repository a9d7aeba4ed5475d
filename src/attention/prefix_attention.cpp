// The contract of prefix attention, checked once, and the choice of the device's body.
#include "attention/prefix_attention.hpp"

#include "core/build_config.hpp"

namespace coppice {
namespace {

void check_heads(ConstTensorView q, const AttentionPlan& plan) {
  COPPICE_CHECK(q.shape().rank() == 3, "q must be [T, Hq, D], not {}", q.shape());
  const bool on_cuda = q.device().kind == DeviceKind::kCuda;
  COPPICE_CHECK(
      on_cuda ? q.dtype() == DType::kBF16 : q.dtype() == DType::kF32 || q.dtype() == DType::kF64,
      "q is {} on {}", name_of(q.dtype()), q.device().to_string());
  COPPICE_CHECK(q.shape()[0] == plan.query_rows(), "q has {} rows, its plan {}", q.shape()[0],
                plan.query_rows());
  COPPICE_CHECK(q.shape()[2] > 0 && q.shape()[1] > 0, "q is {}", q.shape());
}

/// Returns the number of KV heads; that of q where there is no space to ask.
std::int64_t check_spaces(ConstTensorView q, const AttentionPlan& plan,
                          std::span<const KeySpace> spaces) {
  COPPICE_CHECK(std::ssize(spaces) == plan.space_count(), "{} key spaces for a plan of {}",
                spaces.size(), plan.space_count());
  std::int64_t kv_heads = spaces.empty() ? q.shape()[1] : 0;
  for (std::size_t s = 0; s < spaces.size(); ++s) {
    const auto& [k, v] = spaces[s];
    COPPICE_CHECK(k.shape().rank() == 3, "k of space {} must be [K_s, Hkv, D], not {}", s,
                  k.shape());
    if (s == 0) kv_heads = k.shape()[1];
    const Shape wanted{plan.space_rows(static_cast<std::int32_t>(s)), kv_heads, q.shape()[2]};
    COPPICE_CHECK(k.shape() == wanted, "k of space {} is {}, not {}", s, k.shape(), wanted);
    COPPICE_CHECK(v.spec() == k.spec(), "v of space {} is {}, its k {}", s, v.shape(), k.shape());
    COPPICE_CHECK(k.dtype() == q.dtype() && k.device() == q.device(),
                  "k of space {} is {} on {}, q {} on {}", s, name_of(k.dtype()),
                  k.device().to_string(), name_of(q.dtype()), q.device().to_string());
  }
  COPPICE_CHECK(kv_heads > 0 && q.shape()[1] % kv_heads == 0,
                "{} query heads for {} key-value heads (each key-value head serves the same "
                "number of query heads)",
                q.shape()[1], kv_heads);
  return kv_heads;
}

/// Each matrix product is 2 D for every pair that a head sees. What backward makes again, queries
/// with keys, does not count.
double flops_of(ConstTensorView q, const AttentionPlan& plan, double products) {
  return 2.0 * products * static_cast<double>(q.shape()[1] * q.shape()[2]) *
         static_cast<double>(plan.visible_pairs());
}

void check_lse(ConstTensorView lse, ConstTensorView q) {
  const Shape wanted{q.shape()[1], q.shape()[0]};
  const DType dtype = accumulation_of(q.dtype());
  COPPICE_CHECK(lse.shape() == wanted && lse.dtype() == dtype, "softmax_lse is {} {}, not {} {}",
                name_of(lse.dtype()), lse.shape(), name_of(dtype), wanted);
}

void check_grad(const KeySpaceGrad& grad, ConstTensorView k, std::size_t space) {
  const auto& [dk, dv, beta] = grad;
  COPPICE_CHECK(dk.shape() == k.shape() && dk.device() == k.device() && dv.spec() == dk.spec(),
                "dk, dv of space {} are {}, {}, its k {}", space, dk.shape(), dv.shape(),
                k.shape());
  COPPICE_CHECK(dk.dtype() == k.dtype() || dk.dtype() == accumulation_of(k.dtype()),
                "dk, dv of space {} are {}, its k {}", space, name_of(dk.dtype()),
                name_of(k.dtype()));
  COPPICE_CHECK(beta == 0.0 || beta == 1.0, "beta of space {} is {} (0 overwrites, 1 adds)", space,
                beta);
}

}  // namespace

void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse) {
  check_heads(q, plan);
  check_spaces(q, plan, spaces);
  COPPICE_CHECK(out.spec() == q.spec(), "out is {}, q {}", out.shape(), q.shape());
  check_lse(softmax_lse, q);
  const TraceScope scope(ctx.trace, "attention_forward",
                         {.rows = q.shape()[0], .flops = flops_of(q, plan, 2)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::prefix_attention_forward(ctx, plan, q, spaces, softmax_scale, out, softmax_lse);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::prefix_attention_forward(ctx, plan, q, spaces, softmax_scale, out,
                                              softmax_lse);
      }
      break;
  }
  throw_no_backend("prefix_attention_forward", ctx.device());
}

void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads) {
  check_heads(q, plan);
  check_spaces(q, plan, spaces);
  COPPICE_CHECK(out.spec() == q.spec(), "out is {}, q {}", out.shape(), q.shape());
  COPPICE_CHECK(d_out.spec() == q.spec(), "d_out is {}, q {}", d_out.shape(), q.shape());
  COPPICE_CHECK(dq.spec() == q.spec(), "dq is {}, q {}", dq.shape(), q.shape());
  check_lse(softmax_lse, q);
  COPPICE_CHECK(grads.size() == spaces.size(), "{} key space gradients for {} key spaces",
                grads.size(), spaces.size());
  for (std::size_t s = 0; s < grads.size(); ++s) {
    if (grads[s].dk.bytes() == nullptr && grads[s].dv.bytes() == nullptr) continue;
    check_grad(grads[s], spaces[s].k, s);
  }
  const TraceScope scope(ctx.trace, "attention_backward",
                         {.rows = q.shape()[0], .flops = flops_of(q, plan, 4)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::prefix_attention_backward(ctx, plan, q, spaces, out, softmax_lse, d_out,
                                            softmax_scale, dq, grads);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::prefix_attention_backward(ctx, plan, q, spaces, out, softmax_lse, d_out,
                                               softmax_scale, dq, grads);
      }
      break;
  }
  throw_no_backend("prefix_attention_backward", ctx.device());
}

std::int64_t prefix_attention_forward_scratch_bytes(const AttentionPlan& plan,
                                                    std::int64_t num_attention_heads,
                                                    std::int64_t num_key_value_heads,
                                                    std::int64_t head_dim, DType dtype,
                                                    int threads) {
  if constexpr (build::kWithCuda) {
    if (dtype == DType::kBF16) return cuda::prefix_attention_forward_scratch_bytes(plan, head_dim);
  }
  return cpu::prefix_attention_forward_scratch_bytes(plan, num_attention_heads, num_key_value_heads,
                                                     head_dim, dtype, threads);
}

std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan,
                                                     std::int64_t num_attention_heads,
                                                     std::int64_t num_key_value_heads,
                                                     std::int64_t head_dim, DType dtype,
                                                     int threads) {
  if constexpr (build::kWithCuda) {
    if (dtype == DType::kBF16) {
      return cuda::prefix_attention_backward_scratch_bytes(plan, num_attention_heads,
                                                           num_key_value_heads, head_dim);
    }
  }
  return cpu::prefix_attention_backward_scratch_bytes(
      plan, num_attention_heads, num_key_value_heads, head_dim, dtype, threads);
}

}  // namespace coppice
