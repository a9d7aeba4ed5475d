#include "checkpoint/element_checksum.hpp"

#include <cstring>

#include "core/error.hpp"

namespace coppice {
namespace {

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

template <class Bits>
std::uint64_t sum_of(const std::byte* elements, std::int64_t first_index, std::int64_t count) {
  std::uint64_t sum = 0;
  std::uint64_t offset = (static_cast<std::uint64_t>(first_index) + 1) * kStep;
  for (std::int64_t i = 0; i < count; ++i, offset += kStep) {
    Bits bits;
    std::memcpy(&bits, elements + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    sum += mixed(bits + offset);
  }
  return sum;
}

}  // namespace

std::uint64_t element_checksum(const std::byte* elements, std::int64_t element_bytes,
                               std::int64_t first_index, std::int64_t count) {
  switch (element_bytes) {
    case 1:
      return sum_of<std::uint8_t>(elements, first_index, count);
    case 2:
      return sum_of<std::uint16_t>(elements, first_index, count);
    case 4:
      return sum_of<std::uint32_t>(elements, first_index, count);
    case 8:
      return sum_of<std::uint64_t>(elements, first_index, count);
    default:
      COPPICE_CHECK(false, "elements of {} bytes have no checksum", element_bytes);
  }
  return 0;
}

std::uint64_t rectangle_checksum(const std::byte* elements, std::int64_t element_bytes,
                                 const Shard& shard, std::int64_t row_begin,
                                 std::int64_t row_count) {
  const int rank = shard.global_shape.rank();
  if (rank == 0) return element_checksum(elements, element_bytes, 0, row_count);
  // A run is what lies side by side both here and in the whole: the last axis, or rows of a vector.
  const std::int64_t run = rank == 1 ? row_count : shard.local_shape.back();
  const std::int64_t rows_total =
      rank == 1
          ? 1
          : row_count *
                (shard.local_shape.numel() / std::max<std::int64_t>(1, shard.local_shape[0])) /
                std::max<std::int64_t>(1, run);
  std::uint64_t sum = 0;
  for (std::int64_t r = 0; r < rows_total && run > 0; ++r) {
    // The run's place in the global tensor, axis by axis from the innermost outer one.
    std::int64_t rest = r, index = 0, stride = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      std::int64_t at = shard.global_offset[axis];
      if (axis == 0)
        at += row_begin + (rank == 1 ? 0 : rest);
      else if (axis < rank - 1) {
        at += rest % shard.local_shape[axis];
        rest /= shard.local_shape[axis];
      }
      index += at * stride;
      stride *= shard.global_shape[axis];
    }
    sum += element_checksum(elements + r * run * element_bytes, element_bytes, index, run);
  }
  return sum;
}

}  // namespace coppice
