#pragma once
// The bytes of a rectangle out of a tensor that lies somewhere as one row-major run: a dataset in
// its file, a weight in a safetensors file. How bytes are fetched is the caller's business.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "parallel/shard.hpp"

namespace coppice {

/// Fills `target` with the tensor's bytes from `offset` on.
using ReadBytes = std::function<void(std::int64_t offset, std::span<std::byte> target)>;

/// Fetches rows of one rectangle, part after part.
///
///   Runs that lie within a page or two of each other are cut out of larger pieces, read with what
///   lies between: a disk reads that anyway, and one request for each run would be many.
///
/// Memory    256 KiB, where runs are cut out
class RectangleBytes {
 public:
  RectangleBytes(const Shard& shard, std::int64_t element_bytes, ReadBytes read);

  /// Rows [row_begin, row_begin + row_count) of the rectangle, contiguous at `target`.
  void read(std::int64_t row_begin, std::int64_t row_count, std::byte* target);

 private:
  Shard shard_;
  std::int64_t width_;
  ReadBytes read_;
  bool cuts_out_;
  std::vector<std::byte> piece_;
};

}  // namespace coppice
