#include "launch/inspect_rollouts.hpp"

#include <algorithm>
#include <cmath>

#include "rl/rollouts.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;

/// Smallest, mean and largest of what was added.
struct Spread {
  std::int64_t count = 0;
  double sum = 0, least = 0, most = 0;

  void add(double value) {
    least = count == 0 ? value : std::min(least, value);
    most = count == 0 ? value : std::max(most, value);
    sum += value;
    ++count;
  }
  Json json() const {
    if (count == 0) return nullptr;
    return {{"least", least}, {"mean", sum / static_cast<double>(count)}, {"most", most}};
  }
};

}  // namespace

Json describe_rollouts(const std::filesystem::path& path) {
  const std::vector<Group> groups = read_rollouts(path, {});
  Spread prompts, lengths, rewards, group_sizes;
  std::int64_t loss_tokens = 0, truncated = 0, with_ref = 0, with_advantages = 0, with_spread = 0;
  std::int64_t rows = 0, logical_rows = 0;
  std::int32_t largest_id = 0;
  for (const auto& group : groups) {
    Spread group_rewards;
    const auto prompt = std::ssize(group.prompt_ids);
    prompts.add(static_cast<double>(prompt));
    group_sizes.add(static_cast<double>(group.responses.size()));
    rows += prompt;
    for (std::int32_t id : group.prompt_ids) largest_id = std::max(largest_id, id);
    for (const auto& response : group.responses) {
      const auto length = std::ssize(response.ids);
      lengths.add(static_cast<double>(length));
      rows += length;
      logical_rows += prompt + length;
      loss_tokens += response.loss_tokens();
      truncated += response.truncated ? 1 : 0;
      with_ref += response.ref_logprobs.empty() ? 0 : 1;
      for (std::int32_t id : response.ids) largest_id = std::max(largest_id, id);
      if (response.reward) {
        rewards.add(*response.reward);
        group_rewards.add(*response.reward);
      }
    }
    with_advantages += has_advantages(group) ? 1 : 0;
    with_spread += group_rewards.most > group_rewards.least ? 1 : 0;
  }
  Json json;
  json["file"] = path.string();
  json["kind"] = "rollouts";
  json["bytes"] = std::filesystem::file_size(path);
  json["groups"] = groups.size();
  json["responses"] = lengths.count;
  json["group_size"] = group_sizes.json();
  json["prompt_tokens"] = prompts.json();
  json["response_tokens"] = lengths.json();
  json["loss_tokens"] = loss_tokens;
  json["truncated_responses"] = truncated;
  json["rewards"] = rewards.count;
  json["reward"] = rewards.json();
  json["groups_with_reward_spread"] = with_spread;
  json["old_logprobs"] = has_old_logprobs(groups);
  json["responses_with_ref_logprobs"] = with_ref;
  json["groups_with_advantages"] = with_advantages;
  json["largest_id"] = largest_id;
  json["rows_grouped"] = rows;
  json["rows_repeated"] = logical_rows;
  return json;
}

}  // namespace coppice
