#pragma once
// Sums of tensors that are too large to be left to MPI: its reductions that do not block go through
// one rank, which then adds everything up alone. Here every rank adds up the piece it owns.
// Private to parallel/mpi.
#include <mpi.h>

#include <functional>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// MPI's name of a number type. Errors: ContractError for types that are not summed.
MPI_Datatype number_type(DType dtype);

class PairwiseReduction {
 public:
  /// Waits for all requests of one round of messages.
  using Finish = std::function<void(std::span<MPI_Request>)>;

  explicit PairwiseReduction(MPI_Comm comm) : comm_(comm) {}

  /// `result`: the elements [begins[r], begins[r + 1]) of the sum (maximum) of `whole` over ranks,
  /// r being this rank. It may be those elements of `whole` themselves.
  ///
  /// Memory    one block of staging per rank, kept
  /// Repeats   bitwise: contributions are added in the order of the ranks
  void run(const std::byte* whole, std::byte* result, std::span<const std::int64_t> begins,
           DType dtype, ReduceOp op, const Finish& finish);

 private:
  MPI_Comm comm_;
  std::vector<std::byte> staging_;
};

}  // namespace coppice
