#include "core/kernels/wrapper_kernels.hpp"

#include "device/async_copy.cuh"
#include "device/barrier.cuh"
#include "device/bf16.cuh"
#include "device/block.cuh"
#include "device/math.cuh"
#include "device/mma.cuh"
#include "device/pack.cuh"

namespace coppice::test {
namespace {

using namespace device;

__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int thread_of_grid() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}
unsigned blocks_of_64(int count) { return static_cast<unsigned>((count + 63) / 64); }

__global__ void conversions(Conversions a) {
  const int i = thread_of_grid();
  if (i >= a.count) return;
  a.single[i] = float_to_bf16(a.in[i]);
  a.pair[i] = pack_bf16(a.in[i], a.in[i ^ 1]);
  a.back[i] = bf16_to_float(a.single[i]);
  a.low[i] = low_bf16(a.pair[i]);
  a.high[i] = high_bf16(a.pair[i]);
}

__global__ void function_of(Function function, const float* in, float* out, int count) {
  const int i = thread_of_grid();
  if (i >= count) return;
  switch (function) {
    case Function::kExp2:
      out[i] = fast_exp2(in[i]);
      break;
    case Function::kLog2:
      out[i] = fast_log2(in[i]);
      break;
    case Function::kRsqrt:
      out[i] = fast_rsqrt(in[i]);
      break;
  }
}

template <class T>
__global__ void shuffles(Shuffles<T> a) {
  const int lane = thread();
  const T value = a.in[lane];
  a.out[lane] = warp_shuffle_xor(value, a.mask);
  a.out[32 + lane] = warp_shuffle(value, a.source);
  a.out[64 + lane] = warp_shuffle_down(value, a.distance);
  a.out[96 + lane] = warp_sum(value);
}
template <class T>
void launch_shuffles_of(Stream& stream, const Shuffles<T>& arguments) {
  launch(stream, {dim3(1), dim3(32)}, shuffles<T>, arguments);
}

__global__ void block_sums(const float* in, float* out) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread();
  out[t] = block_sum(in[t], shared);
  out[static_cast<int>(blockDim.x) + t] = block_max(in[t], shared);
}

__global__ void matrix_loads(const std::uint16_t* in, int rows_apart, std::uint32_t* out) {
  auto* shared = reinterpret_cast<std::uint16_t*>(shared_memory());
  const int lane = thread();
  for (int i = 0; i < 8; ++i) shared[lane * rows_apart + i] = in[lane * 8 + i];
  sync_warp();
  std::uint32_t plain[4], transposed[4];
  load_matrix_x4(plain, shared + lane * rows_apart);
  load_matrix_x4_transposed(transposed, shared + lane * rows_apart);
  for (int i = 0; i < 4; ++i) {
    out[lane * 4 + i] = plain[i];
    out[128 + lane * 4 + i] = transposed[i];
  }
}

__device__ __forceinline__ std::uint32_t pair_of(BF16 low, BF16 high) {
  return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}

__global__ void product(const BF16* a, const BF16* b, float* d) {
  const int lane = thread(), g = lane / 4, q = lane % 4 * 2;
  const auto of_a = [&](int row, int column) {
    return pair_of(a[row * 16 + column], a[row * 16 + column + 1]);
  };
  const auto of_b = [&](int row) { return pair_of(b[row * 8 + g], b[(row + 1) * 8 + g]); };
  const std::uint32_t part_a[4] = {of_a(g, q), of_a(g + 8, q), of_a(g, q + 8), of_a(g + 8, q + 8)};
  const std::uint32_t part_b[2] = {of_b(q), of_b(q + 8)};
  float sums[4] = {d[g * 8 + q], d[g * 8 + q + 1], d[(g + 8) * 8 + q], d[(g + 8) * 8 + q + 1]};
  mma_m16n8k16_bf16(sums, part_a, part_b);
  d[g * 8 + q] = sums[0];
  d[g * 8 + q + 1] = sums[1];
  d[(g + 8) * 8 + q] = sums[2];
  d[(g + 8) * 8 + q + 1] = sums[3];
}

__global__ void copies(const float* in, float* out, int groups) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread();
  for (int group = 0; group < groups; ++group) {
    const int at = group * 256 + t * 4;
    copy_async_16(shared + at, in + at, t % 2 == 0);
    commit_copies();
  }
  wait_copies<1>();
  // A thread may read its own copies of all groups but the last one now.
  for (int group = 0; group + 1 < groups; ++group) {
    const int at = group * 256 + t * 4;
    store_pack(out + at, load_pack<4>(shared + at));
  }
  wait_copies<0>();
  __syncthreads();
  // And everybody's of the last one: the neighbour's.
  const int at = (groups - 1) * 256 + (t ^ 1) * 4;
  store_pack(out + at, load_pack<4>(shared + at));
}

__global__ void barriers(const int* in, int* out) {
  int* shared = reinterpret_cast<int*>(shared_memory());
  const int t = thread(), pair = t / 64;
  shared[t] = in[t];
  named_barrier(1 + pair, 64);
  const int first = shared[pair * 64 + (t + 32) % 64];
  __syncthreads();
  shared[t] = first;
  __syncthreads();
  const int second = shared[(t + 64) % 128];
  __syncthreads();
  shared[t] = second;
  sync_warp();
  out[t] = shared[t ^ 1];
}

__global__ void packs(const BF16* in, BF16* out, const float* in_f32, float* out_f32, int count) {
  const int i = thread() * 8;
  if (i >= count) return;
  store_pack(out + i, load_pack<8>(in + i));
  const BF16* second = in + count + i;
  BF16* second_out = out + count + i;
  store_pack(second_out, load_pack<4>(second));
  store_pack(second_out + 4, load_pack<2>(second + 4));
  store_pack(second_out + 6, load_pack<1>(second + 6));
  store_pack(second_out + 7, load_pack<1>(second + 7));
  store_pack(out_f32 + i, load_pack<4>(in_f32 + i));
  store_pack(out_f32 + i + 4, load_pack<4>(in_f32 + i + 4));
}

__global__ void indices(unsigned* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned numbers[12] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x,
                                blockIdx.y,  blockIdx.z,  blockDim.x,  blockDim.y,
                                blockDim.z,  gridDim.x,   gridDim.y,   gridDim.z};
  for (unsigned i = 0; i < 12; ++i) out[(block * 64 + t) * 12 + i] = numbers[i];
}

__global__ void shared_bytes(int bytes, unsigned* out) {
  unsigned char* shared = shared_memory();
  // Two at a time: the finest that neighbours may write without an order.
  auto* halves = reinterpret_cast<std::uint16_t*>(shared);
  for (int i = thread(); i < bytes / 2; i += 256) halves[i] = 0x0101;
  __syncthreads();
  if (thread() != 0) return;
  unsigned sum = 0;
  for (int i = 0; i < bytes; ++i) sum += shared[i];
  out[0] = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(shared) % 1024);
  out[1] = sum;
}

__global__ void large_parameter(Large large, int* out) {
  for (int i = thread(); i < 256; i += 32) out[i] = large.values[i];
}

}  // namespace

void launch_conversions(Stream& stream, const Conversions& arguments) {
  launch(stream, {dim3(blocks_of_64(arguments.count)), dim3(64)}, conversions, arguments);
}
void launch_function(Stream& stream, Function function, const float* in, float* out, int count) {
  launch(stream, {dim3(blocks_of_64(count)), dim3(64)}, function_of, function, in, out, count);
}
void launch_shuffles(Stream& stream, const Shuffles<float>& arguments) {
  launch_shuffles_of(stream, arguments);
}
void launch_shuffles(Stream& stream, const Shuffles<std::int32_t>& arguments) {
  launch_shuffles_of(stream, arguments);
}
void launch_shuffles(Stream& stream, const Shuffles<double>& arguments) {
  launch_shuffles_of(stream, arguments);
}
void launch_block_sums(Stream& stream, const float* in, float* out, int threads) {
  launch(stream, {dim3(1), dim3(static_cast<unsigned>(threads)), 32 * sizeof(float)}, block_sums,
         in, out);
}
void launch_matrix_loads(Stream& stream, const std::uint16_t* in, int rows_apart,
                         std::uint32_t* out) {
  launch(stream, {dim3(1), dim3(32), 32 * 2 * rows_apart}, matrix_loads, in, rows_apart, out);
}
void launch_product(Stream& stream, const BF16* a, const BF16* b, float* d) {
  launch(stream, {dim3(1), dim3(32)}, product, a, b, d);
}
void launch_copies(Stream& stream, const float* in, float* out, int groups) {
  launch(stream, {dim3(1), dim3(64), groups * 1024}, copies, in, out, groups);
}
void launch_barriers(Stream& stream, const int* in, int* out) {
  launch(stream, {dim3(1), dim3(128), 128 * sizeof(int)}, barriers, in, out);
}
void launch_packs(Stream& stream, const BF16* in, BF16* out, const float* in_f32, float* out_f32,
                  int count) {
  launch(stream, {dim3(1), dim3(128)}, packs, in, out, in_f32, out_f32, count);
}
void launch_indices(Stream& stream, unsigned* out) {
  launch(stream, {dim3(3, 2, 2), dim3(8, 4, 2)}, indices, out);
}
void launch_shared_memory(Stream& stream, std::int64_t bytes, unsigned* out) {
  launch(stream, {dim3(1), dim3(256), bytes}, shared_bytes, static_cast<int>(bytes), out);
}
void launch_large(Stream& stream, const Large& large, int* out) {
  launch(stream, {dim3(1), dim3(32)}, large_parameter, large, out);
}

}  // namespace coppice::test
