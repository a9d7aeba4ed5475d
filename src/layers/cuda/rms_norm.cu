// The norm on a CUDA device. A team of threads, a warp for short vectors and a whole block for long
// ones, takes a vector at a time and reads it twice, the second time from the cache. Where sum, y
// or dx lie over an input, each element is read and written by the same thread.
#include "layers/rms_norm.hpp"

#include "device/bf16.cuh"
#include "device/block.cuh"
#include "device/pack.cuh"
#include "layers/cuda/row_blocks.hpp"

namespace coppice::cuda {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
// From here on a vector is work for a block.
constexpr std::int64_t kLongVector = 1024;

/// The address of vector (t, h) of [T, N] or [T, H, N]; null where an operand is not there.
template <class T>
struct Vectors {
  T* data = nullptr;
  std::int64_t row = 0, head = 0;

  __device__ __forceinline__ T* at(std::int64_t t, std::int64_t h) const {
    return data + t * row + h * head;
  }
};

struct Extents {
  std::int64_t tokens, heads;
  int width;
};

// Elements of a vector are dealt to the team in packs: kPack neighbours to a thread.
template <int kTeam, int kPack, class F>
__device__ __forceinline__ void for_packs(int width, F&& f) {
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  for (int i = member * kPack; i < width; i += kTeam * kPack) f(i);
}

template <int kTeam>
__device__ __forceinline__ float team_sum(float value, float* shared) {
  if constexpr (kTeam == kWarpSize) {
    return warp_sum(value);
  } else {
    return block_sum(value, shared);
  }
}

struct Forward {
  Extents extents;
  Vectors<const BF16> x, delta;
  const BF16* gamma;
  float epsilon;
  Vectors<BF16> sum, y;
  float* rstd;
};

template <int kTeam, int kPack>
__global__ void __launch_bounds__(kThreads) forward_kernel(Forward a) {
  float* reduction = reinterpret_cast<float*>(shared_memory());
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  const std::int64_t vector = std::int64_t{blockIdx.x} * (kThreads / kTeam) + team;
  // Whole teams leave, so the barriers of the others, which are within a team, are not disturbed.
  if (vector >= a.extents.tokens * a.extents.heads) return;
  const std::int64_t t = vector / a.extents.heads, h = vector % a.extents.heads;
  const int width = a.extents.width;
  const BF16* x = a.x.at(t, h);
  float squares = 0;
  if (a.delta.data != nullptr) {
    const BF16* delta = a.delta.at(t, h);
    BF16* sum = a.sum.at(t, h);
    for_packs<kTeam, kPack>(width, [&](int i) {
      auto values = load_pack<kPack>(x + i);
      const auto deltas = load_pack<kPack>(delta + i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        values[k] = float_to_bf16(bf16_to_float(values[k]) + bf16_to_float(deltas[k]));
        // Of the rounded sum: it is what backward will see.
        const float value = bf16_to_float(values[k]);
        squares += value * value;
      }
      store_pack(sum + i, values);
    });
    x = sum;
  } else {
    for_packs<kTeam, kPack>(width, [&](int i) {
      const auto values = load_pack<kPack>(x + i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float value = bf16_to_float(values[k]);
        squares += value * value;
      }
    });
  }
  squares = team_sum<kTeam>(squares, reduction);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(width) + a.epsilon);
  BF16* y = a.y.at(t, h);
  for_packs<kTeam, kPack>(width, [&](int i) {
    auto values = load_pack<kPack>(x + i);
    const auto weights = load_pack<kPack>(a.gamma + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      values[k] = float_to_bf16(bf16_to_float(values[k]) * rstd * bf16_to_float(weights[k]));
    }
    store_pack(y + i, values);
  });
  if (threadIdx.x % kTeam == 0) a.rstd[vector] = rstd;
}

struct Backward {
  Extents extents;
  std::int64_t rows_per_block;
  Vectors<const BF16> x, dy, residual_grad;
  const BF16* gamma;
  const float* rstd;
  Vectors<BF16> dx;
  float* partial;  // [blocks, width] in the order of places, or null
};

// Where the sum of column i + k of a pack lies: the k-th columns of all packs side by side, so that
// the threads of a warp, which have a pack each, are in different banks.
template <int kPack>
__device__ __forceinline__ int place_of(int i, int k, int width) {
  return k * (width / kPack) + i / kPack;
}
__device__ __forceinline__ int column_at(int place, int width, int pack) {
  const int packs = width / pack;
  return place % packs * pack + place / packs;
}

// A block takes the vectors of a run of rows. Each team keeps its own sums for dgamma in shared
// memory, where an element belongs to one thread; at the end they are added in the teams' order.
template <int kTeam, int kPack>
__global__ void __launch_bounds__(kThreads) backward_kernel(Backward a) {
  constexpr int kTeams = kThreads / kTeam;
  float* reduction = reinterpret_cast<float*>(shared_memory());
  float* all_sums = reduction + kWarps;
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  const int width = a.extents.width;
  float* sums = all_sums + team * width;
  const bool learns = a.partial != nullptr;
  if (learns) {
    for_packs<kTeam, kPack>(width, [&](int i) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) sums[place_of<kPack>(i, k, width)] = 0;
    });
  }
  const std::int64_t first = std::int64_t{blockIdx.x} * a.rows_per_block;
  const std::int64_t end = std::min(first + a.rows_per_block, a.extents.tokens);
  for (std::int64_t v = team; v < (end - first) * a.extents.heads; v += kTeams) {
    const std::int64_t t = first + v / a.extents.heads, h = v % a.extents.heads;
    const BF16 *x = a.x.at(t, h), *dy = a.dy.at(t, h);
    float dot = 0;
    for_packs<kTeam, kPack>(width, [&](int i) {
      const auto xs = load_pack<kPack>(x + i), dys = load_pack<kPack>(dy + i),
                 weights = load_pack<kPack>(a.gamma + i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        dot += bf16_to_float(dys[k]) * bf16_to_float(weights[k]) * bf16_to_float(xs[k]);
      }
    });
    dot = team_sum<kTeam>(dot, reduction);
    const float rstd = a.rstd[t * a.extents.heads + h];
    const float mean = dot * rstd / static_cast<float>(width);
    BF16* dx = a.dx.at(t, h);
    for_packs<kTeam, kPack>(width, [&](int i) {
      const auto xs = load_pack<kPack>(x + i), dys = load_pack<kPack>(dy + i),
                 weights = load_pack<kPack>(a.gamma + i);
      Pack<BF16, kPack> residuals{}, out;
      if (a.residual_grad.data != nullptr) {
        residuals = load_pack<kPack>(a.residual_grad.at(t, h) + i);
      }
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float normed = bf16_to_float(xs[k]) * rstd, g = bf16_to_float(dys[k]);
        const float inner = g * bf16_to_float(weights[k]) - normed * mean;
        out[k] = float_to_bf16(inner * rstd + bf16_to_float(residuals[k]));
        if (learns) sums[place_of<kPack>(i, k, width)] += g * normed;
      }
      store_pack(dx + i, out);
    });
  }
  if (!learns) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    float sum = all_sums[i];
    for (int k = 1; k < kTeams; ++k) sum += all_sums[k * width + i];
    a.partial[std::int64_t{blockIdx.x} * width + i] = sum;
  }
}

// dgamma += the blocks' sums. A block takes 32 places; its eight warps take every eighth partial,
// and their sums are added in order.
__global__ void __launch_bounds__(kThreads)
    add_partials_kernel(const float* partial, int blocks, int width, int pack, float* dgamma) {
  float* sums = reinterpret_cast<float*>(shared_memory());  // [8][32]
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int place = static_cast<int>(blockIdx.x) * kWarpSize + lane;
  float sum = 0;
  if (place < width) {
    for (int b = warp; b < blocks; b += kWarps) sum += partial[std::int64_t{b} * width + place];
  }
  sums[warp * kWarpSize + lane] = sum;
  __syncthreads();
  if (warp != 0 || place >= width) return;
  for (int k = 1; k < kWarps; ++k) sum += sums[k * kWarpSize + lane];
  dgamma[column_at(place, width, pack)] += sum;
}

template <class T, class View>
Vectors<T> vectors(const View& view) {
  return {view.template data<BF16>(), view.strides()[0],
          view.shape().rank() == 3 ? view.strides()[1] : 0};
}

// Whether every vector of the operand can be read 16 bytes at a time.
template <class T>
bool takes_packs(const Vectors<T>& v) {
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.row % 8 == 0 && v.head % 8 == 0;
}

// Calls f with the team's and the pack's size as constants.
template <class F>
void with_team(int width, bool packs, F&& f) {
  using std::integral_constant;
  const auto with_pack = [&](auto team) {
    packs ? f(team, integral_constant<int, 8>{}) : f(team, integral_constant<int, 1>{});
  };
  width <= kLongVector ? with_pack(integral_constant<int, kWarpSize>{})
                       : with_pack(integral_constant<int, kThreads>{});
}

Extents extents_of(ConstTensorView x) {
  return {x.shape()[0], x.shape().rank() == 3 ? x.shape()[1] : 1,
          static_cast<int>(x.shape().back())};
}

unsigned blocks_of(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x, std::optional<ConstTensorView> delta,
                          ConstTensorView gamma, double epsilon, std::optional<TensorView> sum,
                          TensorView y, TensorView rstd) {
  Forward a{.extents = extents_of(x),
            .x = vectors<const BF16>(x),
            .delta = {},
            .gamma = gamma.data<BF16>(),
            .epsilon = static_cast<float>(epsilon),
            .sum = {},
            .y = vectors<BF16>(y),
            .rstd = rstd.data<float>()};
  if (delta) a.delta = vectors<const BF16>(*delta);
  if (sum) a.sum = vectors<BF16>(*sum);
  const bool packs = a.extents.width % 8 == 0 && takes_packs(a.x) && takes_packs(a.delta) &&
                     takes_packs(Vectors<const BF16>{a.gamma}) && takes_packs(a.sum) &&
                     takes_packs(a.y);
  with_team(a.extents.width, packs, [&](auto team, auto pack) {
    const auto blocks = blocks_of(a.extents.tokens * a.extents.heads, kThreads / team);
    launch(ctx.stream, {dim3(blocks), dim3(kThreads), kWarps * sizeof(float)},
           forward_kernel<team, pack>, a);
  });
}

void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView rstd, ConstTensorView dy,
                       std::optional<ConstTensorView> residual_grad, TensorView dx,
                       std::optional<TensorView> dgamma) {
  const Extents extents = extents_of(x);
  const RowBlocks blocks(extents.tokens);
  const auto count = static_cast<unsigned>(blocks.count());
  ScratchScope scratch(ctx.scratch);
  TensorView partial = scratch.lease(DType::kF32, {blocks.count(), extents.width});
  Backward a{.extents = extents,
             .rows_per_block = blocks.rows_per_block,
             .x = vectors<const BF16>(x),
             .dy = vectors<const BF16>(dy),
             .residual_grad = {},
             .gamma = gamma.data<BF16>(),
             .rstd = rstd.data<float>(),
             .dx = vectors<BF16>(dx),
             .partial = dgamma ? partial.data<float>() : nullptr};
  if (residual_grad) a.residual_grad = vectors<const BF16>(*residual_grad);
  const bool packs = extents.width % 8 == 0 && takes_packs(a.x) && takes_packs(a.dy) &&
                     takes_packs(a.residual_grad) && takes_packs(Vectors<const BF16>{a.gamma}) &&
                     takes_packs(a.dx);
  with_team(extents.width, packs, [&](auto team, auto pack) {
    const auto sums = dgamma ? std::int64_t{kThreads / team} * extents.width : 0;
    launch(ctx.stream, {dim3(count), dim3(kThreads), (kWarps + sums) * std::int64_t{sizeof(float)}},
           backward_kernel<team, pack>, a);
  });
  if (!dgamma || count == 0) return;
  launch(ctx.stream,
         {dim3(blocks_of(extents.width, kWarpSize)), dim3(kThreads), kThreads * sizeof(float)},
         add_partials_kernel, partial.data<float>(), static_cast<int>(count), extents.width,
         packs ? 8 : 1, dgamma->data<float>());
}

}  // namespace coppice::cuda
