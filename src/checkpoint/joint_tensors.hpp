#pragma once
// Which tensors all ranks together hold. A rank lists only the rectangles that are its own, and may
// have none of some tensor; a file needs to know all of them, the same on every rank.
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// One logical tensor.
struct JointTensor {
  struct Piece {
    int rank;
    Shard shard;
  };
  std::string dataset;
  DType dtype;
  Shape shape;
  std::vector<Piece> pieces;  ///< by rank; those without elements are left out
};

/// The tensors of all ranks, each once: rank 0's in their order, then what the next ranks add.
///
///   `dtypes` names one type for each of `mine`.
///
/// Parallel  collective; every rank gets the same answer
/// Errors    ContractError, on all ranks, where ranks disagree on a tensor's type or shape
std::vector<JointTensor> join_tensors(Communicator& world, std::span<const StateTensor> mine,
                                      std::span<const DType> dtypes);

/// ContractError unless every element of the tensor belongs to exactly one piece.
void check_cover(const JointTensor& tensor);

}  // namespace coppice
