#pragma once
// Which tensors all ranks together hold. A rank lists only the rectangles that are its own, and may
// have none of some tensor; a file needs to know all of them, the same on every rank.
#include <cstddef>
#include <optional>
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
    std::size_t place;  ///< in that rank's list
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

/// The same for one process that holds all there is.
std::vector<JointTensor> list_tensors(std::span<const StateTensor> all,
                                      std::span<const DType> dtypes);

/// Of pieces that several ranks may hold alike, the first of each, where these make up the tensor;
/// nothing where they overlap otherwise or leave elements out.
std::optional<std::vector<JointTensor::Piece>> cover_of(const Shape& shape,
                                                        std::span<const JointTensor::Piece> pieces);

/// ContractError unless every element of the tensor belongs to exactly one piece.
void check_cover(const JointTensor& tensor);

}  // namespace coppice
