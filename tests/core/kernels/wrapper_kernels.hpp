#pragma once
// One kernel for each wrapper in device/: what it gives for operands from memory. All pointers are
// to the device's memory; a block has one warp unless said otherwise.
#include <cstdint>

#include "core/dtype.hpp"
#include "core/stream.hpp"

namespace coppice::test {

/// Thread i of count threads, in blocks of 64.
struct Conversions {
  const float* in;
  int count;
  BF16* single;         // float_to_bf16(in[i])
  std::uint32_t* pair;  // pack_bf16(in[i], in[i ^ 1])
  float* back;          // bf16_to_float(single[i])
  float *low, *high;    // of pair[i]
};
void launch_conversions(Stream& stream, const Conversions& arguments);

enum class Function { kExp2, kLog2, kRsqrt };
void launch_function(Stream& stream, Function function, const float* in, float* out, int count);

/// Lane l gets in[l]. Results [4][32]: xor `mask`, lane `source`, down by `distance`, and the sum.
template <class T>
struct Shuffles {
  const T* in;
  T* out;
  int mask, source, distance;
};
void launch_shuffles(Stream& stream, const Shuffles<float>& arguments);
void launch_shuffles(Stream& stream, const Shuffles<std::int32_t>& arguments);
void launch_shuffles(Stream& stream, const Shuffles<double>& arguments);

/// A block of `threads` threads: out[0..] = block_sum, out[threads..] = block_max of in.
void launch_block_sums(Stream& stream, const float* in, float* out, int threads);

/// 32 rows of 8 elements to shared memory, `rows_apart` elements apart, then load_matrix of them.
/// out [2][32][4]: plain and transposed, lane by lane.
void launch_matrix_loads(Stream& stream, const std::uint16_t* in, int rows_apart,
                         std::uint32_t* out);

/// a [16][16], b [16][8], d [16][8] row major; d += a b.
void launch_product(Stream& stream, const BF16* a, const BF16* b, float* d);

/// 64 threads in `groups` groups of copies of 16 bytes each, all but the last group waited for by
/// wait_copies<1>, then all. in, out: groups * 256 floats. Copies of odd threads are not valid.
void launch_copies(Stream& stream, const float* in, float* out, int groups);

/// Threads of two pairs of warps exchange their values by named barriers, then all by
/// __syncthreads(), then neighbours by sync_warp(). out[i] is where in[i] went; 128 of each.
void launch_barriers(Stream& stream, const int* in, int* out);

/// Packs of 1, 2, 4 and 8 bf16, of 4 floats: out = in, `count` a multiple of 8 of each.
void launch_packs(Stream& stream, const BF16* in, BF16* out, const float* in_f32, float* out_f32,
                  int count);

/// Every thread of a grid (3, 2, 2) of blocks (8, 4, 2) writes 12 numbers: its index, its block's,
/// and both shapes.
void launch_indices(Stream& stream, unsigned* out);

/// out[0] = the remainder of shared memory's address by 1024, out[1] = sum of all its bytes, which
/// the 256 threads set to 1.
void launch_shared_memory(Stream& stream, std::int64_t bytes, unsigned* out);

/// A kernel's parameter of a kilobyte arrives whole.
struct Large {
  int values[256];
};
void launch_large(Stream& stream, const Large& large, int* out);

}  // namespace coppice::test
