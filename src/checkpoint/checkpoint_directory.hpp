#pragma once
// The checkpoints of one run directory: their names, which of them a run goes on from, and which
// old ones may go. What is inside a file is checkpoint.hpp's business.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace coppice {

/// "step_00000010.h5"
std::string checkpoint_file_name(std::int64_t step);

/// Checkpoints by name, oldest first. Temporary files are not listed. Empty without the directory.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

/// From the newest checkpoint of a run to the oldest, until one is whole. A file's values are only
/// looked at when they are loaded, so whoever loads them says what came of it.
///
///   while (auto reader = search.next())
///     try { load(*reader); break; } catch (const DamagedCheckpoint& error) {
///     search.pass_over(error); }
///
/// Parallel  made with `world`, which must outlive the readers, all is collective: the ranks see
///           one list and open the same files
class CheckpointSearch {
 public:
  explicit CheckpointSearch(const std::filesystem::path& directory);
  CheckpointSearch(const std::filesystem::path& directory, Communicator& world);

  /// Whether the directory holds any checkpoint at all.
  bool has_any() const { return has_any_; }
  /// The newest that was not given yet and that opens; those that do not are passed over. Nothing
  /// at the end.
  std::optional<CheckpointReader> next();
  /// The one given last is damaged.
  void pass_over(const InputError& why);
  /// One line for each that was passed over since this was last asked.
  std::vector<std::string> take_passed_over() { return std::exchange(passed_over_, {}); }

 private:
  std::vector<std::filesystem::path> left_;  ///< oldest first
  Communicator* world_ = nullptr;
  bool has_any_ = false;
  std::vector<std::string> passed_over_;
};

/// Removes all but the newest `keep` checkpoints up to step `newest`, and temporary files that dead
/// runs left. 0 keeps all. Later steps stay and do not count: they were passed over, and must not
/// push out those that are whole. Call it after the checkpoint of step `newest` is safe, on one
/// rank.
void remove_old_checkpoints(const std::filesystem::path& directory, std::int64_t keep,
                            std::int64_t newest);

}  // namespace coppice
