#include "rl/microbatch_planner.hpp"

#include <algorithm>
#include <numeric>

namespace coppice {
namespace {

std::int64_t prompt_rows(const Group& group) { return std::ssize(group.prompt_ids); }
std::int64_t response_rows(const Group& group, std::int64_t response) {
  return std::ssize(group.responses[static_cast<std::size_t>(response)].ids);
}

std::int64_t grouped_rows(const Group& group) {
  std::int64_t rows = prompt_rows(group);
  for (const Response& response : group.responses) rows += std::ssize(response.ids);
  return rows;
}

std::int64_t longest_row(const Group& group) {
  std::int64_t longest = 0;
  for (const Response& response : group.responses)
    longest = std::max(longest, std::ssize(response.ids));
  return prompt_rows(group) + longest;
}

// Cuts one group into parts.
class GroupCutter {
 public:
  GroupCutter(std::span<const Group> groups, std::int32_t index, const BatchingConfig& config,
              EdgeTokens edges, const PackingCost& cost)
      : group_(groups[static_cast<std::size_t>(index)]),
        index_(index),
        config_(config),
        edges_(edges),
        cost_(cost) {}

  GroupParts run() {
    const auto count = static_cast<std::int32_t>(group_.responses.size());
    switch (config_.sharing) {
      case Sharing::kGrouped:
        add({index_, 0, count, true});
        break;
      case Sharing::kRepeated:
        add_repeated(0, count);
        break;
      case Sharing::kAuto:
        add_cheaper(count);
        break;
    }
    return std::move(cut_);
  }

 private:
  void add_repeated(std::int32_t first, std::int32_t count) {
    for (std::int32_t i = first; i < first + count; ++i) add({index_, i, 1, false});
  }

  // A group that shares nothing worth its seams runs as single sequences, each wherever it fits.
  // Else grouped parts as large as the budget allows; what is left for a part may be one response,
  // which has nothing to share.
  void add_cheaper(std::int32_t count) {
    if (!is_cheaper_grouped(0, count)) return add_repeated(0, count);
    std::int32_t first = 0, parts = 0;
    while (first < count) {
      std::int64_t rows = prompt_rows(group_) + response_rows(group_, first);
      std::int32_t end = first + 1;
      while (end < count && rows + response_rows(group_, end) <= config_.max_rows_per_microbatch)
        rows += response_rows(group_, end++);
      if (is_cheaper_grouped(first, end - first))
        add({index_, first, end - first, true});
      else
        add_repeated(first, end - first);
      first = end;
      ++parts;
    }
    cut_.is_fallback = parts > 1;
  }

  // Attention of a prefix and of n responses with rows behind it is 1 + 2 n pairs of ranges: each
  // response sees the prefix and itself. Repeated, every response is one.
  bool is_cheaper_grouped(std::int32_t first, std::int32_t count) const {
    std::int64_t ranges = 1 - count, rows = 0;
    for (std::int32_t i = first; i < first + count; ++i) {
      rows += response_rows(group_, i);
      ranges += response_rows(group_, i) > 0 ? 2 : 0;
    }
    const auto work_cost = [&](bool grouped) {
      return cost_(work_of(group_, {index_, first, count, grouped}, edges_));
    };
    return work_cost(true) + cost_.of_seams(ranges, rows) <= work_cost(false);
  }

  void add(const MicrobatchPart& part) {
    const PackedWork work = work_of(group_, part, edges_);
    COPPICE_CHECK(work.rows <= config_.max_rows_per_microbatch,
                  "group \"{}\": {} rows for a budget of {}", group_.name, work.rows,
                  config_.max_rows_per_microbatch);
    cut_.parts.push_back({part, work});
    cut_.cost += cost_(work);
  }

  const Group& group_;
  std::int32_t index_;
  const BatchingConfig& config_;
  EdgeTokens edges_;
  const PackingCost& cost_;
  GroupParts cut_;
};

}  // namespace

std::string_view sharing_name(std::int64_t grouped_parts, std::int64_t repeated_parts) {
  if (grouped_parts > 0) return repeated_parts > 0 ? "MIXED" : "GROUPED";
  return repeated_parts > 0 ? "REPEATED" : "";
}

std::string_view MicrobatchPlan::sharing_name() const {
  return coppice::sharing_name(grouped_parts, repeated_parts);
}

void check_row_budget(std::span<const Group> groups, const BatchingConfig& config) {
  constexpr int kMostNamed = 20;
  const bool whole_groups = config.sharing == Sharing::kGrouped;
  const auto needed = [&](const Group& group) {
    return whole_groups ? grouped_rows(group) : longest_row(group);
  };
  std::int64_t most = 0, longest = 0, refused = 0;
  for (const Group& group : groups) {
    most = std::max(most, needed(group));
    longest = std::max(longest, longest_row(group));
  }
  Problems problems;
  for (const Group& group : groups) {
    if (needed(group) <= config.max_rows_per_microbatch || ++refused > kMostNamed) continue;
    const std::int64_t prompt = prompt_rows(group);
    if (whole_groups)
      problems.add(
          "batching.max_rows_per_microbatch = {}: group \"{}\" (line {}) has {} rows, {} of its "
          "prompt and {} of its {} responses (GROUPED never splits a group). Set it to {}, with "
          "which every group fits, or set batching.sharing to AUTO, which fits from {} on.",
          config.max_rows_per_microbatch, group.name, group.line, needed(group), prompt,
          needed(group) - prompt, group.responses.size(), most, longest);
    else
      problems.add(
          "batching.max_rows_per_microbatch = {}: the longest response of group \"{}\" (line {}) "
          "has {} rows with its prompt of {} (a response is never split). Set it to {}, with which "
          "every response fits.",
          config.max_rows_per_microbatch, group.name, group.line, needed(group), prompt, most);
  }
  if (refused > kMostNamed)
    problems.add("and {} more groups that do not fit.", refused - kMostNamed);
  problems.throw_if_any<ConfigError>();
}

std::vector<GroupParts> part_groups(std::span<const Group> groups, const BatchingConfig& config,
                                    EdgeTokens edges, const PackingCost& cost) {
  std::vector<GroupParts> parts;
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(groups.size()); ++g)
    parts.push_back(GroupCutter(groups, g, config, edges, cost).run());
  return parts;
}

MicrobatchPlan fill_microbatches(std::span<const GroupParts> parts,
                                 std::span<const std::int32_t> chosen,
                                 const BatchingConfig& config) {
  MicrobatchPlan plan;
  for (const std::int32_t g : chosen) {
    const GroupParts& group = parts[static_cast<std::size_t>(g)];
    for (const auto& [part, work] : group.parts) {
      auto& all = plan.microbatches;
      if (all.empty() || all.back().work.rows + work.rows > config.max_rows_per_microbatch)
        all.emplace_back();
      all.back().parts.push_back(part);
      add(all.back().work, work);
      add(plan.work, work);
      ++(part.grouped ? plan.grouped_parts : plan.repeated_parts);
    }
    plan.fallbacks += group.is_fallback;
  }
  return plan;
}

MicrobatchPlan plan_microbatches(std::span<const Group> groups, const BatchingConfig& config,
                                 EdgeTokens edges, const PackingCost& cost) {
  std::vector<std::int32_t> all(groups.size());
  std::iota(all.begin(), all.end(), 0);
  return fill_microbatches(part_groups(groups, config, edges, cost), all, config);
}

std::int64_t logical_rows(const Group& group) {
  std::int64_t rows = 0;
  for (const Response& response : group.responses)
    rows += prompt_rows(group) + std::ssize(response.ids);
  return rows;
}

}  // namespace coppice
