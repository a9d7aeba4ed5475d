#pragma once
// Groups for tests of packing and planning: by hand, or of random sizes.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/rng.hpp"
#include "model/flops.hpp"
#include "rl/rollouts.hpp"

namespace coppice::test {

inline Group group_of(std::vector<std::int32_t> prompt,
                      std::vector<std::vector<std::int32_t>> responses,
                      const std::string& name = "g0") {
  Group group{name, std::move(prompt), {}, 1};
  for (auto& ids : responses) {
    Response response;
    response.loss_mask.assign(ids.size(), 1);
    response.ids = std::move(ids);
    group.responses.push_back(std::move(response));
  }
  return group;
}

// Groups of random sizes, prompts of 1 to 40, responses of 0 to 30 tokens, some of them masked.
inline std::vector<Group> random_groups(std::size_t count, std::uint64_t seed) {
  const RandomStream random(seed, "groups");
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(bound, draw++); };
  std::vector<Group> groups;
  for (std::size_t g = 0; g < count; ++g) {
    std::vector<std::vector<std::int32_t>> responses(1 + below(6));
    for (auto& ids : responses) ids.assign(below(31), static_cast<std::int32_t>(below(50)));
    groups.push_back(
        group_of(std::vector<std::int32_t>(1 + below(40), 7), responses, fmt::format("g{}", g)));
    for (Response& response : groups.back().responses)
      for (auto& bit : response.loss_mask) bit = below(4) > 0;
  }
  return groups;
}

// The same with another id for every token of the file, from 1 on.
inline std::vector<Group> random_groups_of_distinct_tokens(std::size_t count, std::uint64_t seed) {
  auto groups = random_groups(count, seed);
  std::int32_t next = 1;
  for (Group& group : groups) {
    for (auto& id : group.prompt_ids) id = next++;
    for (Response& response : group.responses)
      for (auto& id : response.ids) id = next++;
  }
  return groups;
}

inline double some_flops(const PackedWork& work) {
  return 1000.0 * static_cast<double>(work.rows) + 4.0 * static_cast<double>(work.visible_pairs) +
         500.0 * static_cast<double>(work.edge_rows);
}

}  // namespace coppice::test
