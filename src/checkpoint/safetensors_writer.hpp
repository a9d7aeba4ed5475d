#pragma once
// Safetensors files written tensor by tensor: one file, or all of a directory's. Reading them is in
// safetensors.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/pending_file.hpp"
#include "core/dtype.hpp"
#include "core/shape.hpp"

namespace coppice {

struct SafetensorsSpec {
  std::string name;
  DType dtype;
  Shape shape;
};

/// Writes one file, tensor by tensor in any order.
///
/// Layout    header padded to 8 bytes; tensors by falling element size, then by name, so that each
///           is aligned
/// Errors    IoError; ContractError when a tensor is not written whole
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors);

  /// Bytes of one tensor from `offset` in it.
  void write(std::string_view name, std::int64_t offset, std::span<const std::byte> bytes);
  /// Flushes and renames.
  void commit();

 private:
  struct Place {
    std::int64_t begin, bytes, written;
  };
  PendingFile file_;
  std::map<std::string, Place, std::less<>> places_;
};

/// Writes the weights of a directory, tensor by tensor: model.safetensors, or, where they have more
/// than `most_bytes`, shards of at most that many bytes of tensors with their index. A larger
/// tensor has a shard of its own.
///
/// Layout    tensors fill the shards in the order given; names as transformers':
///           model-00001-of-00003.safetensors, model.safetensors.index.json
/// Memory    the index; written in the order given, one file is open at a time
/// Errors    as SafetensorsWriter
class SafetensorsModelWriter {
 public:
  SafetensorsModelWriter(std::filesystem::path directory, std::vector<SafetensorsSpec> tensors,
                         std::int64_t most_bytes);

  /// Bytes of one tensor from `offset` in it; each byte once. A shard gets its name with its last
  /// byte.
  void write(std::string_view name, std::int64_t offset, std::span<const std::byte> bytes);
  void commit();
  int file_count() const { return static_cast<int>(files_.size()); }

 private:
  struct File {
    std::string name;
    std::vector<SafetensorsSpec> tensors = {};
    std::int64_t bytes = 0, written = 0;
    std::unique_ptr<SafetensorsWriter> writer = {};
    bool committed = false;
  };
  void begin(File& file);
  void end(File& file);

  std::filesystem::path directory_;
  std::vector<File> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

}  // namespace coppice
