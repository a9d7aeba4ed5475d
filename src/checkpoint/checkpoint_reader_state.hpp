#pragma once
// What an open checkpoint knows, shared by the files that implement its reader: one opens and
// lists, one compares checksums, one reads values. Nobody else includes this.
#include <functional>
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
    std::vector<int> copy_of_rank = {0};
  } shared = {};

  /// Adds a problem unless `bytes` has the checksum of `dataset` (or the file has none at all).
  void check_bytes(const std::string& dataset, const std::string& bytes, Problems& problems) const;
  /// The same for a tensor, read in blocks.
  void check_values(const StoredTensor& tensor, Problems& problems) const;
  /// Compares tensors with their checksums; the ranks share the reading. DamagedCheckpoint with
  /// every problem, on all ranks.
  void check_all(std::span<const StoredTensor* const> list) const;
  /// DamagedCheckpoint, on all ranks, where the file is too small for one of the tensors.
  void check_fit(std::span<const StoredTensor* const> list) const;
  /// The sum of a tensor that is read in blocks.
  std::uint64_t read_through(const StoredTensor& tensor) const;
};

/// What the ranks find of a list of tensors, each for its own part, put together in the end.
class JointSums {
 public:
  JointSums(const CheckpointFile& file, std::span<const StoredTensor* const> list);

  /// `part` reads of tensor i and returns the sum of those elements that this rank counts. What it
  /// finds damaged is kept.
  void add(std::size_t i, const std::function<std::uint64_t()>& part);
  /// The sums need not be those of the checksums: nobody counts this one's elements.
  void leave_out(std::size_t i) { left_out_[i] = true; }
  /// DamagedCheckpoint with every problem of every rank.
  ///
  /// Parallel  collective: all ranks throw, or none
  void compare();

 private:
  std::span<std::uint64_t> own();

  const CheckpointFile& file_;
  std::span<const StoredTensor* const> list_;
  /// For each copy of the file: the sums, and behind them how many ranks could not read their part.
  std::vector<std::uint64_t> sums_;
  std::vector<bool> left_out_;
  Problems mine_;
};

struct CheckpointReader::State : CheckpointFile {
  explicit State(CheckpointFile&& opened) : CheckpointFile(std::move(opened)) {}
};

}  // namespace coppice
