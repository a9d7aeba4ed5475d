#pragma once
// A small matrix multiplication on tensor cores with double-buffered asynchronous copies, and the
// ways to spoil it that a check must notice.
#include "core/dtype.hpp"
#include "core/stream.hpp"

namespace coppice::test {

enum class GemmMutation {
  kNone,
  kNoWait,              ///< fragments are loaded before the copies have landed
  kNoBarrierBeforeUse,  ///< a warp loads what another one's copies brought
  kNoBarrierAfterUse,   ///< the next copies overwrite what another warp still reads
};

struct GemmArguments {
  const BF16 *a, *b;  // [M, K], [N, K]; K a multiple of 8
  float* c;           // [M, N] = a b^T
  int m, n, k;
};

void launch_gemm(Stream& stream, const GemmArguments& arguments, GemmMutation mutation);

}  // namespace coppice::test
