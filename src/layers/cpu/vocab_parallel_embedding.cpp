// The embedding on the CPU. Backward is cut by columns, not by rows: each thread walks all rows in
// order for its own columns, so repeated tokens need neither atomics nor a sort.
#include "layers/vocab_parallel_embedding.hpp"

#include <algorithm>

#include "core/parallel_for.hpp"

namespace coppice::cpu {

void embedding_forward(ExecContext& ctx, ConstTensorView weight, const VocabShard& shard,
                       std::span<const std::int32_t> token_ids, TensorView y) {
  const auto width = weight.shape()[1];
  visit_float(weight.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for_ranges(ctx, std::ssize(token_ids), 32, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto token = token_ids[static_cast<std::size_t>(t)];
        T* to = y.data<T>() + t * y.strides()[0];
        if (shard.holds(token)) {
          std::copy_n(weight.data<T>() + (token - shard.begin) * weight.strides()[0], width, to);
        } else {
          std::fill_n(to, width, T{0});
        }
      }
    });
  });
}

void embedding_backward(ExecContext& ctx, const VocabShard& shard,
                        std::span<const std::int32_t> token_ids, ConstTensorView dy,
                        TensorView dweight) {
  const auto width = dweight.shape()[1];
  visit_float(dweight.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr std::int64_t kLine = 64 / sizeof(T);  // threads share no cache line
    const auto lines = (width + kLine - 1) / kLine;
    parallel_for_ranges(ctx, lines, 1, [&](std::int64_t begin, std::int64_t end) {
      const auto first = begin * kLine, last = std::min(end * kLine, width);
      for (std::int64_t t = 0; t < std::ssize(token_ids); ++t) {
        const auto token = token_ids[static_cast<std::size_t>(t)];
        if (!shard.holds(token)) continue;
        const T* from = dy.data<T>() + t * dy.strides()[0];
        T* to = dweight.data<T>() + (token - shard.begin) * dweight.strides()[0];
        for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
      }
    });
  });
}

}  // namespace coppice::cpu
