#include "launch/study_rollouts.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <iterator>
#include <string>

#include "checkpoint/pending_file.hpp"
#include "core/rng.hpp"

namespace coppice {
namespace {

std::vector<std::int32_t> random_ids(std::uint64_t seed, const std::string& name,
                                     std::int64_t count, std::int64_t vocab_size) {
  const RandomStream random(seed, name);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab_size), i));
  return ids;
}

}  // namespace

std::vector<Group> random_groups(const SweepPoint& point, std::int64_t groups,
                                 std::int64_t vocab_size, std::uint64_t seed,
                                 WithRefLogprobs with_ref_logprobs) {
  const auto length = static_cast<std::size_t>(point.response_length);
  std::vector<Group> made;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::string name = fmt::format("study/group {}", g);
    const RandomStream rewards(seed, name + "/rewards");
    Group group;
    group.name = fmt::format("g{}", g);
    group.prompt_ids = random_ids(seed, name + "/prompt", point.prefix_length, vocab_size);
    for (std::int64_t r = 0; r < point.group_size; ++r) {
      Response response;
      response.ids = random_ids(seed, fmt::format("{}/response {}", name, r), point.response_length,
                                vocab_size);
      response.reward = rewards.uniform(static_cast<std::uint64_t>(r));
      response.loss_mask.assign(length, 1);
      // What a model that knows nothing says.
      if (with_ref_logprobs == WithRefLogprobs::kYes)
        response.ref_logprobs.assign(length, -std::log(static_cast<double>(vocab_size)));
      group.responses.push_back(std::move(response));
    }
    made.push_back(std::move(group));
  }
  return made;
}

void write_rollouts(const std::filesystem::path& path, std::span<const Group> groups) {
  PendingFile file(path);
  std::int64_t written = 0;
  for (const Group& group : groups) {
    std::string line;
    const auto out = std::back_inserter(line);
    fmt::format_to(out, "{{\"group\": \"{}\", \"prompt_ids\": [{}], \"responses\": [", group.name,
                   fmt::join(group.prompt_ids, ","));
    for (const Response& response : group.responses) {
      fmt::format_to(out, "{}{{\"ids\": [{}], \"reward\": {}",
                     &response == &group.responses.front() ? "" : ",", fmt::join(response.ids, ","),
                     response.reward.value_or(0));
      if (!response.ref_logprobs.empty())
        fmt::format_to(out, ", \"ref_logprobs\": [{}]", fmt::join(response.ref_logprobs, ","));
      line += "}";
    }
    line += "]}\n";
    write_at(file.descriptor(), written, line.data(), std::ssize(line), path);
    written += std::ssize(line);
  }
  file.commit();
}

}  // namespace coppice
