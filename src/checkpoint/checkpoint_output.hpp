#pragma once
// A checkpoint file while it grows: its parts under their names, and the checksum of each. When it
// becomes a file of its final name, and that its tensors are whole, is the caller's business.
// Private to the files that write checkpoints.
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/hdf5_file.hpp"
#include "core/host_pieces.hpp"

namespace coppice {

/// A rectangle in its stored type, block by block: `put` gets rows [begin, begin + count) of it,
/// rounded to nearest even. Returns the checksum of all elements. A device's values need `stream`,
/// and pass through `pieces`.
std::uint64_t in_stored_blocks(
    const std::string& dataset, DType stored, const Shard& shard, ConstTensorView values,
    Stream* stream, HostPieces& pieces,
    const std::function<void(std::int64_t begin, std::int64_t count, const std::byte* rows)>& put);

class CheckpointOutput {
 public:
  explicit CheckpointOutput(Hdf5File file) : file_(std::move(file)) {}

  /// Everything of the header; the trainer's arrays whole.
  void write_header(const CheckpointHeader& header);
  /// An empty tensor, with the groups that lead to it.
  void create(const std::string& dataset, DType stored, const Shape& shape,
              Hdf5Allocation allocation = Hdf5Allocation::kFirstWrite);
  /// A rectangle of a tensor that was created. Its elements enter the checksum.
  void write(const std::string& dataset, DType stored, const Shard& shard, ConstTensorView values,
             Stream* stream = nullptr);
  /// The last part of a file.
  void write_checksums(const std::map<std::string, std::uint64_t>& checksums);
  void close() { file_.close(); }
  /// Where in the file a tensor's first element lies, once it has its place.
  std::int64_t offset_of(const std::string& dataset) const { return file_.data_offset(dataset); }

  /// Of what this object wrote, by dataset; 0 for a tensor of which it wrote nothing yet.
  const std::map<std::string, std::uint64_t>& checksums() const { return checksums_; }

 private:
  void make_groups_for(const std::string& dataset);
  void write_text(const std::string& dataset, std::string_view text);
  void write_bytes(const std::string& dataset, std::string_view bytes);

  Hdf5File file_;
  HostPieces pieces_;
  std::set<std::string> groups_;
  std::map<std::string, std::uint64_t> checksums_;
};

}  // namespace coppice
