#pragma once
// Sums over ranks, not left to MPI: the order of its additions, and with it the last bits, is the
// library's, and its reductions that do not block go through one rank, which adds everything up
// alone. Here every rank adds up the piece it owns. Private to parallel/mpi.
#include <mpi.h>

#include <functional>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// Dtypes    f32, f64, i32, i64 (wrapping); ContractError for others
/// Repeats   bitwise: rank 0's value first, then rank 1's, ..., whatever the size of the message
class PairwiseReduction {
 public:
  /// Waits for all requests of one round of messages.
  using Finish = std::function<void(std::span<MPI_Request>)>;

  explicit PairwiseReduction(MPI_Comm comm) : comm_(comm) {}

  /// `result`: the elements [begins[r], begins[r + 1]) of the sum (maximum) of `whole` over ranks,
  /// r being this rank. It may be those elements of `whole` themselves.
  ///
  /// Memory    at most 2 MiB of staging, kept
  void run(const std::byte* whole, std::byte* result, std::span<const std::int64_t> begins,
           DType dtype, ReduceOp op, const Finish& finish);

 private:
  MPI_Comm comm_;
  std::vector<std::byte> staging_;  // what others sent: a block being summed, and the next
};

}  // namespace coppice
