// Any bytes as a safetensors file: refused with a DataError, or a file whose tensors follow each
// other from the header to the last byte, each as large as its type and shape say.
#include <algorithm>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "core/error.hpp"
#include "fuzz/memory_file.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static coppice::test::MemoryFile memory;  // one for all inputs: making it is the slowest part
  memory.hold(data, size);
  try {
    const coppice::SafetensorsFile file(memory.path());
    require(file.file_bytes() == static_cast<std::int64_t>(size));
    std::int64_t end = file.entries().empty() ? file.file_bytes() : file.entries().front().begin;
    for (const auto& entry : file.entries()) {
      require(entry.begin == end && entry.bytes >= 0);
      end += entry.bytes;
      if (const auto dtype = coppice::dtype_from_safetensors(entry.dtype)) {
        std::int64_t bytes = coppice::size_of(*dtype);
        for (const std::int64_t extent : entry.shape) bytes *= extent;
        require(bytes == entry.bytes);
      }
      std::vector<std::byte> values(static_cast<std::size_t>(entry.bytes));
      file.read(entry, 0, values);
      require(std::equal(values.begin(), values.end(), data + entry.begin,
                         [](std::byte a, std::uint8_t b) { return a == std::byte{b}; }));
    }
    require(end == file.file_bytes());
  } catch (const coppice::DataError& error) {
    require(!error.problems().empty());
  }
  return 0;
}
