#include "checkpoint/element_checksum.hpp"

#include "checkpoint/rectangle_runs.hpp"
#include "core/error.hpp"

namespace coppice {

std::uint64_t element_checksum(const std::byte* elements, std::int64_t element_bytes,
                               std::int64_t first_index, std::int64_t count) {
  COPPICE_CHECK(
      element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8,
      "elements of {} bytes have no checksum", element_bytes);
  return cpu::element_checksum(elements, element_bytes, first_index, count);
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
