#pragma once
// What an open checkpoint knows, shared by the files that implement its reader: one opens and
// lists, one compares checksums, one reads values. Nobody else includes this.
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/hdf5_file.hpp"
#include "core/error.hpp"

namespace coppice {

struct CheckpointFile {
  std::filesystem::path path;
  Hdf5File file;
  CheckpointHeader header = {};
  std::vector<StoredTensor> tensors = {};
  std::map<std::string, std::uint64_t> checksums = {};
  std::vector<std::string> notices = {};
  bool verified = false;
  Communicator* world = nullptr;  ///< where several ranks read the file together
  /// Ranks may hold copies of their own under one name, each to be compared with its checksums:
  /// this rank's place among those that see the very same file, and which of the files it is.
  struct Copy {
    int sharer = 0, sharers = 1;
    int copy = 0, copies = 1;
  } shared = {};

  /// Adds a problem unless `bytes` has the checksum of `dataset` (or the file has none at all).
  void check_bytes(const std::string& dataset, const std::string& bytes, Problems& problems) const;
  /// The same for a tensor, read in blocks.
  void check_values(const StoredTensor& tensor, Problems& problems) const;
  /// Compares tensors with their checksums; the ranks share the reading, and all learn every
  /// problem.
  void check_all(std::span<const StoredTensor* const> list, Problems& problems) const;
  /// The sum of a tensor that is read in blocks.
  std::uint64_t read_through(const StoredTensor& tensor) const;
};

struct CheckpointReader::State : CheckpointFile {
  explicit State(CheckpointFile&& opened) : CheckpointFile(std::move(opened)) {}
};

}  // namespace coppice
