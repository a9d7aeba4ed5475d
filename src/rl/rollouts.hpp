#pragma once
// Recorded rollouts: groups of responses to one prompt each, as training and scoring see them, and
// the strict reader of their JSON Lines form. The reader refuses whatever a command could only
// misunderstand, and drops nothing; what the figures mean for a loss is decided elsewhere.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace coppice {

/// One response of a group. Every per-token vector is as long as `ids` or, where it says so, empty.
struct Response {
  std::vector<std::int32_t> ids;
  std::optional<double> reward;
  std::vector<std::uint8_t> loss_mask;  ///< 1: the token is in the loss; never absent
  std::vector<double> old_logprobs;     ///< empty: absent; NaN where the file has null
  std::vector<double> ref_logprobs;     ///< empty: absent; NaN where the file has null
  std::vector<double> advantages;       ///< empty: absent; NaN where the file has null
  bool truncated = false;

  /// Sum of loss_mask.
  std::int64_t loss_tokens() const;
};

struct Group {
  std::string name;
  std::vector<std::int32_t> prompt_ids;
  std::vector<Response> responses;
  std::int64_t line = 0;  ///< where it stands in the file, from 1
};

/// What a command needs of a file beyond its form. All off: as `inspect` reads.
struct RolloutNeeds {
  std::int64_t vocab_size = 0;     ///< ids lie below it; 0: unknown
  std::int64_t max_positions = 0;  ///< prompt + response fit in it; 0: unknown
  bool rewards = false;            ///< on every response of a group without advantages
  bool ref_logprobs = false;       ///< on every response with learning tokens
  bool old_values = false;         ///< old_logprobs, where given, are used where the mask is 1
  bool ref_values = false;         ///< ref_logprobs, where given, are used where the mask is 1
  bool advantage_values = false;   ///< advantages, where given, are used where the mask is 1
  bool mask_truncated = false;     ///< truncated responses get an all-zero mask before any check
};

/// Reads a rollouts file, line by line. Lines of white space only, a byte order mark at the start
/// and CRLF line ends are accepted; anything else that is not a group is refused.
///
/// Memory    one line of text at a time, beside the groups
/// Errors    DataError with every problem as `file:line: group "g0", response 1: ...`; from 200
///           problems on only their number
std::vector<Group> read_rollouts(const std::filesystem::path& path, const RolloutNeeds& needs);

/// True if responses carry old log-probs (all do or none does).
bool has_old_logprobs(const std::vector<Group>& groups);

/// True if `group`'s responses carry their own per-token advantages.
bool has_advantages(const Group& group);

}  // namespace coppice
