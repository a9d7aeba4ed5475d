#pragma once
// The safetensors files of Hugging Face, read tensor by tensor. A header is believed only after
// every bound in it has been checked against the file. Which tensors a model needs is left to
// hf_weights; writing is in safetensors_writer.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/shape.hpp"

namespace coppice {

/// F32, F64, BF16 and F16 by their names in a header; nothing for the types no weight has here.
std::optional<DType> dtype_from_safetensors(std::string_view name);
std::string_view safetensors_name(DType dtype);

/// One tensor of a header. `dtype` may name a type we do not load.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< bytes from the start of the file
  std::int64_t bytes = 0;

  /// "[2, 3]"
  std::string shape_string() const;
};

/// One open file.
///
/// Memory    its header; tensors are read where the caller wants them
/// Errors    DataError listing every problem of the header; IoError where the disk fails
/// Source    github.com/huggingface/safetensors, README, "Format"
/// Oracle    tests/checkpoint/safetensors_test.cpp: files laid out byte by byte there
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t file_bytes() const { return file_bytes_; }
  /// Tells the file from every other one of this machine, and from itself before it was written
  /// anew.
  std::string identity() const;
  /// By offset.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// Bytes of one tensor from `offset` in it, as stored (little-endian).
  void read(const SafetensorsEntry& entry, std::int64_t offset, std::span<std::byte> target) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t file_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

/// All weights of a directory: model.safetensors, or else the shards that
/// model.safetensors.index.json names.
class SafetensorsModel {
 public:
  /// Errors    DataError with the problems of all files: shards missing, tensors that the index and
  ///           the shards disagree on, bad headers
  explicit SafetensorsModel(const std::filesystem::path& directory);

  struct Source {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    void read(std::int64_t offset, std::span<std::byte> target) const {
      file->read(*entry, offset, target);
    }
  };
  const std::map<std::string, Source>& tensors() const { return tensors_; }
  /// Those that hold them, by name.
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Source> tensors_;
};

}  // namespace coppice
