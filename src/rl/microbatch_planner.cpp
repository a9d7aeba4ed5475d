#include "rl/microbatch_planner.hpp"

#include <algorithm>

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

std::int64_t triangle(std::int64_t n) { return n * (n + 1) / 2; }

bool is_edge(const Response& response, std::size_t token, EdgeTokens edges) {
  return edges == EdgeTokens::kAll || response.loss_mask[token] == 1;
}

// Sizes of a part without packing it.
PackedWork work_of_part(const Group& group, const MicrobatchPart& part, EdgeTokens edges) {
  PackedWork work;
  const std::int64_t p = prompt_rows(group);
  if (part.grouped) work = {p, triangle(p), 0};
  bool prompt_predicts = false;
  for (std::int64_t i = part.first_response; i < part.first_response + part.response_count; ++i) {
    const Response& response = group.responses[static_cast<std::size_t>(i)];
    const std::int64_t r = std::ssize(response.ids);
    work.rows += part.grouped ? r : p + r;
    work.visible_pairs += part.grouped ? r * p + triangle(r) : triangle(p + r);
    for (std::size_t t = 0; t < response.ids.size(); ++t) {
      if (!is_edge(response, t, edges)) continue;
      // The last prompt row predicts the first token of every response that shares it.
      const bool shares_row = t == 0 && part.grouped && prompt_predicts;
      if (!shares_row) ++work.edge_rows;
      prompt_predicts = prompt_predicts || t == 0;
    }
  }
  return work;
}

class Planner {
 public:
  Planner(std::span<const Group> groups, const BatchingConfig& config, EdgeTokens edges,
          const PackingCost& cost)
      : groups_(groups), config_(config), edges_(edges), cost_(cost) {}

  MicrobatchPlan run() {
    for (std::int32_t g = 0; g < static_cast<std::int32_t>(groups_.size()); ++g) add_group(g);
    return std::move(plan_);
  }

 private:
  const Group& group(std::int32_t g) const { return groups_[static_cast<std::size_t>(g)]; }

  void add_group(std::int32_t g) {
    const auto count = static_cast<std::int32_t>(group(g).responses.size());
    switch (config_.sharing) {
      case Sharing::kGrouped:
        return add({g, 0, count, true});
      case Sharing::kRepeated:
        return add_repeated(g, 0, count);
      case Sharing::kAuto:
        return add_cheaper(g, count);
    }
  }

  void add_repeated(std::int32_t g, std::int32_t first, std::int32_t count) {
    for (std::int32_t i = first; i < first + count; ++i) add({g, i, 1, false});
  }

  // Grouped parts as large as the budget allows; a part for which the repeated form costs less
  // takes that.
  void add_cheaper(std::int32_t g, std::int32_t count) {
    std::int32_t first = 0, parts = 0;
    while (first < count) {
      std::int64_t rows = prompt_rows(group(g)) + response_rows(group(g), first);
      std::int32_t end = first + 1;
      while (end < count && rows + response_rows(group(g), end) <= config_.max_rows_per_microbatch)
        rows += response_rows(group(g), end++);
      const MicrobatchPart grouped{g, first, end - first, true};
      MicrobatchPart repeated = grouped;
      repeated.grouped = false;
      if (cost_(work_of_part(group(g), grouped, edges_)) <=
          cost_(work_of_part(group(g), repeated, edges_)))
        add(grouped);
      else
        add_repeated(g, first, end - first);
      first = end;
      ++parts;
    }
    plan_.fallbacks += parts > 1;
  }

  void add(const MicrobatchPart& part) {
    const std::int64_t rows = work_of_part(group(part.group), part, edges_).rows;
    const std::int64_t budget = config_.max_rows_per_microbatch;
    COPPICE_CHECK(rows <= budget, "group \"{}\": {} rows for a budget of {}",
                  group(part.group).name, rows, budget);
    auto& all = plan_.microbatches;
    if (all.empty() || all.back().rows + rows > budget) all.emplace_back();
    all.back().parts.push_back(part);
    all.back().rows += rows;
    ++(part.grouped ? plan_.grouped_parts : plan_.repeated_parts);
  }

  std::span<const Group> groups_;
  const BatchingConfig& config_;
  EdgeTokens edges_;
  const PackingCost& cost_;
  MicrobatchPlan plan_;
};

}  // namespace

PackedWork work_of(const PackedBatch& batch) {
  PackedWork work{batch.rows(), batch.plan.visible_pairs(), 0};
  std::int64_t last = -1;
  for (const PredictionEdge& edge : batch.edges) {
    work.edge_rows += edge.row != last;
    last = edge.row;
  }
  return work;
}

void add(PackedWork& sum, const PackedWork& work) {
  sum.rows += work.rows;
  sum.visible_pairs += work.visible_pairs;
  sum.edge_rows += work.edge_rows;
}

std::string_view MicrobatchPlan::sharing_name() const {
  if (grouped_parts > 0) return repeated_parts > 0 ? "MIXED" : "GROUPED";
  return repeated_parts > 0 ? "REPEATED" : "";
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

MicrobatchPlan plan_microbatches(std::span<const Group> groups, const BatchingConfig& config,
                                 EdgeTokens edges, const PackingCost& cost) {
  return Planner(groups, config, edges, cost).run();
}

PackedBatch pack(std::span<const Group> groups, const Microbatch& microbatch, EdgeTokens edges) {
  PackedBatch batch;
  std::vector<SegmentSpec> segments;
  std::vector<SegmentTargets> targets;
  const auto append = [&](const std::vector<std::int32_t>& ids) {
    batch.token_ids.insert(batch.token_ids.end(), ids.begin(), ids.end());
  };
  for (const MicrobatchPart& part : microbatch.parts) {
    const Group& group = groups[static_cast<std::size_t>(part.group)];
    const std::int64_t p = prompt_rows(group);
    const auto root = static_cast<std::int32_t>(segments.size());
    if (part.grouped) {
      append(group.prompt_ids);
      segments.push_back({p, -1});
      targets.push_back({});
    }
    for (std::int32_t i = part.first_response; i < part.first_response + part.response_count; ++i) {
      const Response& response = group.responses[static_cast<std::size_t>(i)];
      if (!part.grouped) append(group.prompt_ids);
      append(response.ids);
      const std::int64_t r = std::ssize(response.ids);
      segments.push_back(part.grouped ? SegmentSpec{r, root} : SegmentSpec{p + r, -1});
      SegmentTargets target{.group = part.group, .response = i};
      if (r > 0) target.first_target = part.grouped ? 0 : p;
      if (edges == EdgeTokens::kInLoss) target.is_target = response.loss_mask;
      targets.push_back(target);
    }
  }
  const PrefixForest forest(segments);
  batch.positions = forest.positions();
  batch.plan = AttentionPlan(forest);
  batch.edges = prediction_edges(forest, batch.token_ids, targets);
  COPPICE_CHECK(batch.rows() == microbatch.rows, "{} rows packed, {} planned", batch.rows(),
                microbatch.rows);
  return batch;
}

std::int64_t logical_rows(const Group& group) {
  std::int64_t rows = 0;
  for (const Response& response : group.responses)
    rows += prompt_rows(group) + std::ssize(response.ids);
  return rows;
}

}  // namespace coppice
