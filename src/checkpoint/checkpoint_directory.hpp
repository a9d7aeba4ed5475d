#pragma once
// The checkpoints of one run directory: their names, which of them a run goes on from, and which
// old ones may go. What is inside a file is checkpoint.hpp's business.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace coppice {

/// "step_00000010.h5"
std::string checkpoint_file_name(std::int64_t step);

/// Checkpoints by name, oldest first. Temporary files are not listed. Empty without the directory.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

struct NewestCheckpoint {
  std::optional<CheckpointReader> reader;  ///< of that file; its values are verified already
  std::vector<std::string> passed_over;    ///< one line for each newer file that is damaged
};

/// The newest checkpoint that is whole: every checksum is compared. Nothing where there is none.
NewestCheckpoint find_newest_valid_checkpoint(const std::filesystem::path& directory);
/// The same by all ranks together, who share the comparing and choose the same file. `world` must
/// outlive the reader.
NewestCheckpoint find_newest_valid_checkpoint(const std::filesystem::path& directory,
                                              Communicator& world);

/// Removes all but the newest `keep` checkpoints, and temporary files that dead runs left. 0 keeps
/// all. Call it after a new checkpoint is safe, on one rank.
void remove_old_checkpoints(const std::filesystem::path& directory, std::int64_t keep);

}  // namespace coppice
