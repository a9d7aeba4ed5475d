#pragma once
// What kernels that work row by row share: the rows of a view as a kernel sees them, several bf16
// elements at once as floats, and how rows and their columns are dealt to blocks and threads.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/tensor.hpp"
#include "device/bf16.cuh"
#include "device/pack.cuh"

namespace coppice::cuda {

/// Elements that a thread moves at once where rows start at multiples of 16 bytes.
inline constexpr int kPack = 8;
inline constexpr int kMostThreads = 256;

/// The rows of a matrix, which may be apart. T may be const.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;

  __device__ __forceinline__ T* at(std::int64_t row) const { return data + row * stride; }
};

template <class T, class View>
Rows<T> rows_of(const View& matrix) {
  return {matrix.template data<std::remove_const_t<T>>(), matrix.strides()[0]};
}

/// kCount neighbouring elements, in f32.
template <int kCount>
struct Floats {
  float values[kCount];

  __device__ __forceinline__ float& operator[](int i) { return values[i]; }
  __device__ __forceinline__ float operator[](int i) const { return values[i]; }
};

template <int kCount>
__device__ __forceinline__ Floats<kCount> load_floats(const BF16* source) {
  Floats<kCount> floats;
  const auto pack = device::load_pack<kCount>(source);
  if constexpr (kCount == 1) {
    floats[0] = device::bf16_to_float(pack[0]);
  } else {
    std::uint32_t words[kCount / 2];
    std::memcpy(words, &pack, sizeof words);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      floats[2 * i] = device::low_bf16(words[i]);
      floats[2 * i + 1] = device::high_bf16(words[i]);
    }
  }
  return floats;
}

/// f32 packs of more than 16 bytes are aligned to 16.
template <int kCount>
__device__ __forceinline__ Floats<kCount> load_floats(const float* source) {
  constexpr int kPart = kCount < 4 ? kCount : 4;
  Floats<kCount> floats;
#pragma unroll
  for (int i = 0; i < kCount; i += kPart) {
    const auto pack = device::load_pack<kPart>(source + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) floats[i + j] = pack[j];
  }
  return floats;
}

template <int kCount>
__device__ __forceinline__ void store_floats(BF16* target, const Floats<kCount>& floats) {
  device::Pack<BF16, kCount> pack;
  if constexpr (kCount == 1) {
    pack[0] = device::float_to_bf16(floats[0]);
  } else {
    std::uint32_t words[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      words[i] = device::pack_bf16(floats[2 * i], floats[2 * i + 1]);
    }
    std::memcpy(&pack, words, sizeof words);
  }
  device::store_pack(target, pack);
}

template <int kCount>
__device__ __forceinline__ void store_floats(float* target, const Floats<kCount>& floats) {
  constexpr int kPart = kCount < 4 ? kCount : 4;
#pragma unroll
  for (int i = 0; i < kCount; i += kPart) {
    device::Pack<float, kPart> pack;
#pragma unroll
    for (int j = 0; j < kPart; ++j) pack[j] = floats[i + j];
    device::store_pack(target + i, pack);
  }
}

/// Calls f(i) for every kCount-th column from 0, dealt to the threads of the block.
template <int kCount, class F>
__device__ __forceinline__ void for_columns(std::int64_t width, F&& f) {
  const auto step = std::int64_t{blockDim.x} * kCount;
  for (auto i = std::int64_t{threadIdx.x} * kCount; i < width; i += step) f(i);
}

/// Threads of a block that takes a row: one for each of its packs, in whole warps.
inline unsigned threads_for(std::int64_t packs) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((packs + 31) / 32 * 32, 32, kMostThreads));
}

inline unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// Whether all of a view's rows (and heads) start at multiples of 16 bytes.
inline bool starts_aligned(ConstTensorView view) {
  bool aligned = reinterpret_cast<std::uintptr_t>(view.bytes()) % 16 == 0;
  for (int axis = 0; axis + 1 < view.shape().rank(); ++axis) {
    aligned = aligned && view.strides()[axis] * size_of(view.dtype()) % 16 == 0;
  }
  return aligned;
}

/// Calls f with the pack's size as a constant: kPack where `width` and all views allow it, else 1.
template <class F, class... Views>
void with_pack(F&& f, std::int64_t width, const Views&... views) {
  if (width % kPack == 0 && (starts_aligned(views) && ...)) {
    f(std::integral_constant<int, kPack>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

}  // namespace coppice::cuda
