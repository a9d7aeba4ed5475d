#pragma once
// HDF5 behind a door: files, groups, attributes and datasets as the rest of checkpoint/ needs them,
// with errors that name the file and the object. Nothing outside hdf5_*.cpp sees the library; what
// the objects mean is left to the writer and the reader.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "parallel/shard.hpp"

namespace coppice {

/// What a dataset holds.
enum class Hdf5Content { kTensor, kBytes, kText, kOther };

struct Hdf5DatasetInfo {
  Hdf5Content content = Hdf5Content::kOther;
  DType dtype = DType::kF32;          ///< of a kTensor
  std::vector<std::int64_t> extents;  ///< empty for a scalar
  std::string type_description;       ///< for messages: "f32", "16-bit integers", ...
};

/// When a dataset takes its place in the file.
enum class Hdf5Allocation {
  kFirstWrite,
  kAtOnce,  ///< so that others may write its elements without the library
};

/// A rectangle of one dataset of a file that is read, which must outlive it.
///
/// Errors    DataError
class Hdf5Rectangle {
 public:
  ~Hdf5Rectangle();
  Hdf5Rectangle(Hdf5Rectangle&&) noexcept;

  /// Rows [row_begin, row_begin + row_count), contiguous, in the dataset's own dtype.
  void read(std::int64_t row_begin, std::int64_t row_count, std::byte* elements) const;

 private:
  friend class Hdf5File;
  struct State;
  explicit Hdf5Rectangle(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// One open file.
///
/// Layout    written with library bounds V110 (checksummed metadata), datasets contiguous, strings
///           of fixed length (the heap of variable-length ones has no checksum); both are read
/// Dtypes    f32, f64, f16 as IEEE floats; bf16 as uint16 with the attribute dtype="bf16"
/// Errors    DataError on the reading side, IoError on the writing side
class Hdf5File {
 public:
  /// Makes `path` (which may exist) an empty file; messages call it `shown`.
  static Hdf5File create(const std::filesystem::path& path, const std::filesystem::path& shown);
  static Hdf5File open(const std::filesystem::path& path);
  /// An existing file to add to.
  static Hdf5File open_to_extend(const std::filesystem::path& path,
                                 const std::filesystem::path& shown);
  /// False for a file whose metadata carry no checksums (superblock version 0 or 1), true also
  /// where there is no such file: the library may crash on damage to the former.
  static bool has_checked_metadata(const std::filesystem::path& path);
  ~Hdf5File();
  Hdf5File(Hdf5File&& other) noexcept;
  Hdf5File& operator=(Hdf5File&&) = delete;

  /// Hands everything to the system; the file is closed then.
  void close();

  void make_group(const std::string& group);
  void set_attribute(const std::string& object, const std::string& name, std::int64_t value);
  void set_attribute(const std::string& object, const std::string& name, std::uint64_t value);
  void set_attribute(const std::string& object, const std::string& name, std::string_view value);
  void write_text(const std::string& dataset, std::string_view text);
  void write_bytes(const std::string& dataset, std::string_view bytes);
  void create_tensor(const std::string& dataset, DType dtype, const Shape& shape,
                     Hdf5Allocation allocation = Hdf5Allocation::kFirstWrite);
  /// Rows [row_begin, row_begin + row_count) of a rectangle, contiguous at `elements`, in the
  /// dataset's own dtype.
  void write_rows(const std::string& dataset, DType dtype, const Shard& shard,
                  std::int64_t row_begin, std::int64_t row_count, const std::byte* elements);

  /// Where in the file the elements of a contiguous dataset begin, which must have their place.
  std::int64_t data_offset(const std::string& dataset) const;

  bool has(const std::string& object) const;
  /// Names in a group, sorted; none where there is no such group. Links elsewhere are not followed.
  std::vector<std::string> children(const std::string& group) const;
  bool is_group(const std::string& object) const;
  std::optional<std::int64_t> integer_attribute(const std::string& object,
                                                const std::string& name) const;
  std::optional<std::string> text_attribute(const std::string& object,
                                            const std::string& name) const;
  /// All attributes of an object that are unsigned 64-bit numbers.
  std::map<std::string, std::uint64_t> u64_attributes(const std::string& object) const;
  Hdf5DatasetInfo info(const std::string& dataset) const;
  /// DataError unless the file has room for all elements of a plain (not chunked) dataset.
  void check_fits(const std::string& dataset) const;
  /// A kText or kBytes dataset whole.
  std::string read_text_or_bytes(const std::string& dataset) const;
  /// `dtype` is the dataset's own.
  Hdf5Rectangle rectangle(const std::string& dataset, DType dtype, const Shard& shard) const;

 private:
  Hdf5File(std::int64_t file, std::filesystem::path shown, std::int64_t bytes)
      : file_(file), shown_(std::move(shown)), bytes_(bytes) {}
  static Hdf5File open_written(const std::filesystem::path& path,
                               const std::filesystem::path& shown, bool is_new);
  /// IoError with the system's reason once a write has failed.
  void check_written() const;

  std::int64_t file_ = -1;
  std::unique_ptr<int> write_error_;  ///< of a file opened for writing: an errno, or 0
  std::filesystem::path shown_;
  std::int64_t bytes_ = 0;  ///< of a file opened for reading: no allocation may exceed it
};

}  // namespace coppice
