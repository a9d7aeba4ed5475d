#include "checkpoint/element_checksum.hpp"

#include <cstring>

#include "checkpoint/rectangle_runs.hpp"
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
  std::uint64_t sum = 0;
  for_each_run(shard, row_begin, row_count, [&](const ElementRun& run) {
    sum += element_checksum(elements + run.local * element_bytes, element_bytes, run.global,
                            run.count);
  });
  return sum;
}

}  // namespace coppice
