#pragma once
// What the files that speak to HDF5 share: identifiers that close themselves, the library's own
// reason for a failure, and the types that stand for ours. Only hdf5_*.cpp include this.
#include <hdf5.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "core/dtype.hpp"
#include "parallel/shard.hpp"

namespace coppice::hdf5 {

/// Owns one identifier of any kind but a file.
class Handle {
 public:
  explicit Handle(hid_t id) : id_(id) {}
  ~Handle() {
    if (id_ >= 0) H5Idec_ref(id_);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Handle& operator=(Handle&&) = delete;
  operator hid_t() const { return id_; }  // NOLINT: handed to the library everywhere

 private:
  hid_t id_;
};

/// To be called before the library is used. It prints its error stack by itself unless told not to;
/// and at the process's end it closes what is still open, which crashes it after a write that
/// failed (1.10.8: a full disk). Nothing of ours is open then.
void prepare_library();

/// Checksummed metadata; our own locks, since HDF5's would keep a file system without locks from
/// being used at all.
Handle access_properties();

/// For objects of one kind (H5P_FILE_CREATE, ...): without the time of making, so that equal
/// contents are equal bytes.
Handle creation_properties(hid_t kind);

/// "FILE: OBJECT: WHAT: the library's innermost reason." as a DataError / an IoError.
[[noreturn]] void throw_reading(const std::filesystem::path& file, const std::string& object,
                                std::string_view what);
[[noreturn]] void throw_writing(const std::filesystem::path& file, const std::string& object,
                                std::string_view what);

/// A dataset whose data lie in this file; DataError for any other.
Handle open_dataset(hid_t file, const std::filesystem::path& shown, const std::string& dataset);

/// Rows [row_begin, row_begin + row_count) of a rectangle as a selection in the file, and the shape
/// of what they are in memory.
struct Selection {
  Handle file, memory;
};
Selection select_rows(const Shard& shard, std::int64_t row_begin, std::int64_t row_count);

/// The file type of a tensor's elements, which is also the memory type: nothing converts.
Handle type_of(DType dtype);
/// A fixed-length UTF-8 string type.
Handle text_type(std::size_t length);

}  // namespace coppice::hdf5
