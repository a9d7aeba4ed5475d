#pragma once
// What `coppice score` writes: the scores of a rollouts file, or that file again with one field
// set. Numbers are printed with as few digits as bring the same double back.
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rl/rollouts.hpp"

namespace coppice {

/// Per token of one response.
struct ResponseScores {
  std::vector<double> logprobs;
  std::vector<double> entropies;  ///< nats
};

/// Of one group, in the order of its responses.
using GroupScores = std::vector<ResponseScores>;

/// Writes {"group": ..., "responses": [{"logprobs": [...], "entropies": [...]}, ...]} per group.
///
/// Errors    Error if a value is not finite (JSON has no such number); IoError. No file is left.
void write_scores(const std::filesystem::path& path, std::span<const Group> groups,
                  std::span<const GroupScores> scores);

enum class FillField { kOldLogprobs, kRefLogprobs };

/// "old_logprobs", "ref_logprobs"
std::string_view name_of(FillField field);

/// Writes `source` again with `field` of every response set to its scores' log-probs: replaced
/// where it stands, else as the response's last field. Every other byte stays as it is.
///
/// Errors    Error if a value is not finite; DataError if `source` is no longer the file that
///           `groups` were read from; IoError. No file is left.
void fill_rollouts(const std::filesystem::path& source, const std::filesystem::path& path,
                   FillField field, std::span<const Group> groups,
                   std::span<const GroupScores> scores);

}  // namespace coppice
