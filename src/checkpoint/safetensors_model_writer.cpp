// Writing the weights of a directory: one file, or shards and the index that says which tensor is
// where. How a file is written is in safetensors_writer.cpp.
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.hpp"
#include "core/error.hpp"

namespace coppice {

SafetensorsModelWriter::SafetensorsModelWriter(std::filesystem::path directory,
                                               std::vector<SafetensorsSpec> tensors,
                                               std::int64_t most_bytes)
    : directory_(std::move(directory)) {
  for (auto& tensor : tensors) {
    const std::int64_t bytes = tensor.shape.numel() * size_of(tensor.dtype);
    if (files_.empty() ||
        (!files_.back().tensors.empty() && bytes > most_bytes - files_.back().bytes))
      files_.push_back({});
    COPPICE_CHECK(file_of_.emplace(tensor.name, files_.size() - 1).second,
                  "tensor {} is given twice", tensor.name);
    files_.back().bytes += bytes;
    files_.back().tensors.push_back(std::move(tensor));
  }
  if (files_.empty()) files_.push_back({});
  for (std::size_t i = 0; i < files_.size(); ++i)
    files_[i].name = files_.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files_.size());
}

void SafetensorsModelWriter::begin(File& file) {
  file.writer = std::make_unique<SafetensorsWriter>(directory_ / file.name, file.tensors);
}

void SafetensorsModelWriter::end(File& file) {
  file.writer->commit();
  file.writer.reset();
  file.committed = true;
}

void SafetensorsModelWriter::write(std::string_view name, std::int64_t offset,
                                   std::span<const std::byte> bytes) {
  const auto found = file_of_.find(name);
  COPPICE_CHECK(found != file_of_.end(), "tensor {} is in no file", name);
  File& file = files_[found->second];
  COPPICE_CHECK(!file.committed, "tensor {}: its file {} is whole already", name, file.name);
  if (!file.writer) begin(file);
  file.writer->write(name, offset, bytes);
  file.written += std::ssize(bytes);
  if (file.written == file.bytes) end(file);
}

void SafetensorsModelWriter::commit() {
  nlohmann::ordered_json index;
  std::int64_t total = 0;
  for (auto& file : files_) {
    total += file.bytes;
    if (file.committed) continue;
    if (!file.writer) begin(file);  // none of its tensors has a byte
    end(file);
  }
  if (files_.size() == 1) return;
  index["metadata"]["total_size"] = total;
  for (const auto& [name, file] : file_of_) index["weight_map"][name] = files_[file].name;
  write_file_atomically(directory_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace coppice
