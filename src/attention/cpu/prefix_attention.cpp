// A plain version: one row and head at a time.
#include "attention/prefix_attention.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "core/parallel_for.hpp"

namespace coppice::cpu {
namespace {

template <class T, class View>
auto* row_of(const View& view, std::int64_t row, std::int64_t head) {
  return view.template data<T>() + row * view.strides()[0] + head * view.strides()[1];
}

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Calls f(space, key row) for every key row that query row `i` of `range` sees.
template <class F>
void for_each_seen(const AttentionPlan& plan, const QueryRange& range, std::int64_t i, F&& f) {
  const auto keys = plan.key_ranges();
  for (const auto index : range.full) {
    const KeyRange& key = keys[static_cast<std::size_t>(index)];
    for (std::int64_t j = 0; j < key.length; ++j) f(key.space, key.begin + j);
  }
  if (range.square == QueryRange::kNoSquare) return;
  const KeyRange& key = keys[static_cast<std::size_t>(range.square)];
  for (std::int64_t j = 0; j <= i; ++j) f(key.space, key.begin + j);
}

}  // namespace

void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse) {
  const auto heads = q.shape()[1], dim = q.shape()[2];
  const auto kv_heads = spaces.empty() ? heads : spaces[0].k.shape()[1];
  visit_float(q.dtype(), [&]<class T>(TypeTag<T>) {
    const auto scale = static_cast<T>(softmax_scale);
    for (const QueryRange& range : plan.query_ranges()) {
      parallel_for(ctx, range.length * heads, [&](std::int64_t item) {
        const auto i = item / heads, head = item % heads, kv = head / (heads / kv_heads);
        const T* query = row_of<T>(q, range.begin + i, head);
        T max = -std::numeric_limits<T>::infinity(), sum = 0;
        for_each_seen(plan, range, i, [&](std::int32_t s, std::int64_t j) {
          max = std::max(max, scale * dot(query, row_of<T>(spaces[s].k, j, kv), dim));
        });
        T* o = row_of<T>(out, range.begin + i, head);
        for (std::int64_t d = 0; d < dim; ++d) o[d] = 0;
        for_each_seen(plan, range, i, [&](std::int32_t s, std::int64_t j) {
          const T p = std::exp(scale * dot(query, row_of<T>(spaces[s].k, j, kv), dim) - max);
          const T* v = row_of<T>(spaces[s].v, j, kv);
          sum += p;
          for (std::int64_t d = 0; d < dim; ++d) o[d] += p * v[d];
        });
        if (sum != 0) {
          for (std::int64_t d = 0; d < dim; ++d) o[d] /= sum;
        }
        *(row_of<T>(softmax_lse, head, 0) + range.begin + i) = max + std::log(sum);
      });
    }
  });
}

void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads) {
  const auto heads = q.shape()[1], dim = q.shape()[2];
  const auto kv_heads = spaces.empty() ? heads : spaces[0].k.shape()[1];
  const auto per_kv = heads / kv_heads;
  visit_float(q.dtype(), [&]<class T>(TypeTag<T>) {
    const auto scale = static_cast<T>(softmax_scale);
    for (std::size_t s = 0; s < grads.size(); ++s) {
      if (grads[s].dk.bytes() == nullptr || grads[s].beta != 0) continue;
      for (std::int64_t j = 0; j < grads[s].dk.shape()[0]; ++j) {
        for (std::int64_t h = 0; h < kv_heads; ++h) {
          std::fill_n(row_of<T>(grads[s].dk, j, h), dim, T{0});
          std::fill_n(row_of<T>(grads[s].dv, j, h), dim, T{0});
        }
      }
    }
    parallel_for(ctx, kv_heads, [&](std::int64_t kv) {
      for (const QueryRange& range : plan.query_ranges()) {
        for (std::int64_t i = 0; i < range.length; ++i) {
          for (auto head = kv * per_kv; head < (kv + 1) * per_kv; ++head) {
            const auto row = range.begin + i;
            const T* query = row_of<T>(q, row, head);
            const T* dout = row_of<T>(d_out, row, head);
            const T delta = dot(dout, row_of<T>(out, row, head), dim);
            const T lse = *(row_of<T>(softmax_lse, head, 0) + row);
            T* dquery = row_of<T>(dq, row, head);
            for (std::int64_t d = 0; d < dim; ++d) dquery[d] = 0;
            for_each_seen(plan, range, i, [&](std::int32_t s, std::int64_t j) {
              const T* k = row_of<T>(spaces[s].k, j, kv);
              const T p = std::exp(scale * dot(query, k, dim) - lse);
              const T ds = scale * p * (dot(dout, row_of<T>(spaces[s].v, j, kv), dim) - delta);
              for (std::int64_t d = 0; d < dim; ++d) dquery[d] += ds * k[d];
              if (grads[s].dk.bytes() == nullptr) return;
              T* dk = row_of<T>(grads[s].dk, j, kv);
              T* dv = row_of<T>(grads[s].dv, j, kv);
              for (std::int64_t d = 0; d < dim; ++d) dk[d] += ds * query[d];
              for (std::int64_t d = 0; d < dim; ++d) dv[d] += p * dout[d];
            });
          }
        }
      }
    });
  });
}

std::int64_t prefix_attention_scratch_bytes(AttentionPass, const AttentionPlan&, std::int64_t,
                                            std::int64_t, std::int64_t, DType, int) {
  return 0;
}

}  // namespace coppice::cpu
