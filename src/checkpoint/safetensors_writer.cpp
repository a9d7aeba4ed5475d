// Writing one safetensors file: the header is known before the first tensor, so tensors may come in
// any order.
#include "checkpoint/safetensors_writer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.hpp"
#include "core/error.hpp"

namespace coppice {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsSpec> tensors)
    : file_(path) {
  std::ranges::sort(tensors, [](const auto& a, const auto& b) {
    return std::pair(-size_of(a.dtype), a.name) < std::pair(-size_of(b.dtype), b.name);
  });
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers refuses a file without it
  std::int64_t end = 0;
  for (const auto& tensor : tensors) {
    const std::int64_t bytes = tensor.shape.numel() * size_of(tensor.dtype);
    COPPICE_CHECK(places_.emplace(tensor.name, Place{end, bytes, 0}).second,
                  "tensor {} is given twice", tensor.name);
    auto& entry = header[tensor.name];
    entry["dtype"] = safetensors_name(tensor.dtype);
    entry["shape"] = nlohmann::ordered_json::array();
    for (std::int64_t extent : tensor.shape.extents()) entry["shape"].push_back(extent);
    entry["data_offsets"] = {end, end + bytes};
    end += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  write_at(file_.descriptor(), 0, &length, 8, file_.target());
  write_at(file_.descriptor(), 8, text.data(), std::ssize(text), file_.target());
  for (auto& [name, place] : places_) place.begin += static_cast<std::int64_t>(8 + length);
}

void SafetensorsWriter::write(std::string_view name, std::int64_t offset,
                              std::span<const std::byte> bytes) {
  const auto found = places_.find(name);
  COPPICE_CHECK(found != places_.end(), "tensor {} is not in the header", name);
  Place& place = found->second;
  COPPICE_CHECK(offset >= 0 && offset + std::ssize(bytes) <= place.bytes,
                "bytes {} to {} of tensor {}, which has {}", offset, offset + std::ssize(bytes),
                name, place.bytes);
  write_at(file_.descriptor(), place.begin + offset, bytes.data(), std::ssize(bytes),
           file_.target());
  place.written += std::ssize(bytes);
}

void SafetensorsWriter::commit() {
  for (const auto& [name, place] : places_) {
    COPPICE_CHECK(place.written == place.bytes, "{} of {} bytes of tensor {} are written",
                  place.written, place.bytes, name);
  }
  file_.commit();
}

}  // namespace coppice
