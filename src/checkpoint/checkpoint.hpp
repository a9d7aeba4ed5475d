#pragma once
// What is saved of a run or a model, and how it comes back: logical tensors under their Hugging
// Face names, read and written as the rectangles a rank holds, so that a file never depends on the
// grid that wrote it. The file's layout is docs/checkpoint_format.md; the model and the trainer
// only list what they hold.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_parts.hpp"
#include "core/error.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// Writes a file tensor by tensor under a temporary name; commit() flushes it to disk and gives it
/// its name. Without commit() nothing is left, and a file of that name stays as it was.
///
/// Memory    a block of a few MiB for conversions
/// Errors    IoError with file, dataset and reason
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path path, CheckpointHeader header);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// One rectangle of the logical tensor `dataset`, contiguous, stored as `stored` (rounded to
  /// nearest even). Rectangles of one tensor come in any order; together they must fill it. Values
  /// of a device pass through a piece of the host's memory, in the order of `stream`.
  void write(const std::string& dataset, DType stored, const Shard& shard, ConstTensorView values,
             Stream* stream = nullptr);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All of `tensors` in f32; as they are held with `keep_precision`. On return the file is on disk.
void save_checkpoint(const std::filesystem::path& path, const CheckpointHeader& header,
                     std::span<const StateTensor> tensors, bool keep_precision = false);

/// The same from several ranks into one file. A rank lists the rectangles that it alone writes:
/// several of one tensor, or none. `header` is taken from rank 0.
///
/// Parallel  collective over `world`
/// Errors    the same on all ranks, whichever failed; then nothing is left, and a file of that
///           name stays as it was. ContractError where elements are missing or written twice
void save_checkpoint(const std::filesystem::path& path, const CheckpointHeader& header,
                     std::span<const StateTensor> tensors, bool keep_precision,
                     Communicator& world);

/// A file whose values are not those that were written, or cannot be read.
class DamagedCheckpoint : public DataError {
 public:
  using DataError::DataError;
};

/// An open file whose format, kind and header are read and whose small parts have passed their
/// checksums. A file without checksums in its metadata (ours have them) is first read through in a
/// child process, since damage to it can crash the HDF5 library.
///
/// Parallel  made with `world`, its constructor, verify() and read() are collective: the ranks
///           share the comparing of checksums, each reads what it wants, and all meet the same
///           errors
/// Errors    DataError listing every problem; IoError where the file cannot be opened at all
class CheckpointReader {
 public:
  explicit CheckpointReader(std::filesystem::path path);
  /// `world` must outlive the reader.
  CheckpointReader(std::filesystem::path path, Communicator& world);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const std::filesystem::path& path() const;
  const CheckpointHeader& header() const;
  /// In the order of their names.
  const std::vector<StoredTensor>& tensors() const;
  /// What the user should be told once ("no checksums").
  const std::vector<std::string>& notices() const;

  /// Compares names and shapes under /parameters with those of a model; reads no values.
  void check_parameters(std::span<const ExpectedTensor> expected) const;
  /// Fills every `local`, converting to its dtype. What names and shapes tell is checked first:
  /// datasets missing, extra in a group that `wanted` names, of another shape or no float type.
  /// Checksums are compared as values are read, where the ranks want a tensor whole.
  ///
  /// Errors    DataError with every such problem, DamagedCheckpoint with every dataset that is
  /// damaged;
  ///           after either all `wanted` are as before, or all are NaN
  void read(std::span<const StateTensor> wanted) const;
  /// Rows [begin, begin + count) (axis 0) of one dataset as stored; a scalar is one row.
  void read_stored(const StoredTensor& tensor, std::int64_t begin, std::int64_t count,
                   std::byte* target) const;
  /// Compares every dataset (of a group) with its checksum; after all, read() need not do it again.
  void verify(std::string_view group = "/");

 private:
  void probe(const std::filesystem::path& path);
  void open(const std::filesystem::path& path);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coppice
