#pragma once
// What attention's kernels are handed: addresses and strides of the tensors of a call, in types
// that the host and the device lay out alike. Strides count elements.
#include <cstdint>

#include "attention/cuda/prefix_attention_work.hpp"
#include "core/dtype.hpp"

namespace coppice::cuda {

/// [rows, heads, D], D contiguous.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t row_stride, head_stride;
};

/// One key space. `k` and `v` start each row and head at a multiple of 16 bytes.
struct SpaceView {
  HeadRows<const BF16> k, v;
};

/// Where a space's gradients go: bf16 or f32.
struct SpaceGradView {
  HeadRows<void> dk, dv;
  std::int32_t is_f32, adds;
};

/// Statistics of one query row and head, as backward reads them: 16 bytes, the unit of asynchronous
/// copies.
struct alignas(16) RowStatistics {
  float lse;    // times log2(e)
  float delta;  // rowsum(dO * O)
  float unused[2];
};

}  // namespace coppice::cuda
