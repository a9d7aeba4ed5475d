#pragma once
// A tensor's elements where the host can reach them, piece after piece: in place where the tensor
// is the host's, else by way of one small piece of pinned memory. For who reads or writes files and
// hashes, wherever a tensor lies; moving whole tensors is left to copy.hpp.
#include <cstddef>
#include <cstdint>

#include "core/stream.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// Pieces of contiguous tensors: runs of elements in row-major order.
///
/// Memory    nothing for the host's tensors; else the largest piece asked for, kept
/// Effects   in the order of `stream`; a piece is there, or in its place, when a call returns
/// Errors    ContractError for a device's tensor without a stream of it
class HostPieces {
 public:
  HostPieces() = default;
  ~HostPieces();
  HostPieces(const HostPieces&) = delete;
  HostPieces& operator=(const HostPieces&) = delete;

  /// Elements [begin, begin + count), to be read until the next call.
  const std::byte* fetch(Stream* stream, ConstTensorView tensor, std::int64_t begin,
                         std::int64_t count);
  /// Where the host puts these elements; put() then brings them into the tensor.
  std::byte* room(TensorView tensor, std::int64_t begin, std::int64_t count);
  void put(Stream* stream, TensorView tensor, std::int64_t begin, std::int64_t count);

 private:
  std::byte* pinned(std::int64_t bytes);

  std::byte* piece_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace coppice
