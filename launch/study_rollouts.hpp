#pragma once
// The groups of a study that has lengths instead of recorded rollouts: random ids and rewards,
// which cost a step what real ones cost.
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "launch/study_sweep.hpp"
#include "rl/rollouts.hpp"

namespace coppice {

enum class WithRefLogprobs { kNo, kYes };

/// `groups` groups of the point's lengths. Responses have no old_logprobs.
///
/// Repeats   an id depends on the seed, its group, response and place alone, so the groups of a
///           smaller group size or length are the beginnings of those of a larger one
std::vector<Group> random_groups(const SweepPoint& point, std::int64_t groups,
                                 std::int64_t vocab_size, std::uint64_t seed,
                                 WithRefLogprobs with_ref_logprobs);

/// Writes a rollouts file, whole or not at all.
///
/// Errors    IoError
void write_rollouts(const std::filesystem::path& path, std::span<const Group> groups);

}  // namespace coppice
