#include "rl/step_batch.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rl/advantages.hpp"
#include "rl/microbatch_planner.hpp"

namespace coppice {
namespace {

std::optional<double> mean_of(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> std_of(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = *mean_of(values);
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// Mean |advantage| of the tokens in the loss; nothing for a response without.
std::optional<double> mean_absolute(const Response& response) {
  std::vector<double> absolute;
  for (std::size_t t = 0; t < response.ids.size(); ++t)
    if (response.loss_mask[t] == 1) absolute.push_back(std::abs(response.advantages[t]));
  return mean_of(absolute);
}

}  // namespace

StepBatch::StepBatch(std::vector<Group> groups, const LossConfig& loss,
                     const AdvantageConfig& advantage)
    : loss_(loss), uses_advantages_(traits_of(loss.kind).uses_advantages) {
  for (Group& group : groups) add_group(std::move(group), advantage);
  figures_of_tokens_ = TokenFigures(groups_);
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t r = 0; r < groups_[g].responses.size(); ++r)
      terms_[g][r].weight = token_weight(loss_, totals_, groups_[g].responses[r].loss_tokens());
  has_old_ = uses_advantages_ && coppice::has_old_logprobs(groups_);
  finish_figures();
}

void StepBatch::add_group(Group group, const AdvantageConfig& advantage) {
  std::vector<double> of_responses;
  if (uses_advantages_ && !has_advantages(group)) {
    std::vector<double> rewards;
    for (const Response& response : group.responses) {
      COPPICE_CHECK(response.reward.has_value(), "group \"{}\" has neither rewards nor advantages",
                    group.name);
      rewards.push_back(*response.reward);
    }
    const bool zero_spread = has_zero_spread(rewards);
    figures_.zero_std_groups += zero_spread;
    if (zero_spread && advantage.drop_zero_std_groups) return;
    of_responses = group_advantages(rewards, advantage);
  }

  auto& terms = terms_.emplace_back(group.responses.size());
  for (std::size_t r = 0; r < group.responses.size(); ++r) {
    const Response& response = group.responses[r];
    totals_.count(response.loss_tokens());
    ++figures_.responses;
    figures_.truncated_responses += response.truncated;
    figures_.response_ids += std::ssize(response.ids);
    if (!uses_advantages_) continue;
    terms[r].old_logprobs = response.old_logprobs;
    if (response.reward) rewards_.push_back(*response.reward);
    if (of_responses.empty()) {
      terms[r].advantages = response.advantages;
      if (const auto mean = mean_absolute(response)) absolute_advantages_.push_back(*mean);
    } else {
      terms[r].advantages.assign(response.ids.size(), of_responses[r]);
      absolute_advantages_.push_back(std::abs(of_responses[r]));
    }
  }
  ++figures_.groups;
  figures_.logical_rows += logical_rows(group);
  groups_.push_back(std::move(group));
}

void StepBatch::finish_figures() {
  figures_.reward_mean = mean_of(rewards_);
  figures_.reward_std = std_of(rewards_);
  figures_.advantage_abs_mean = mean_of(absolute_advantages_);
}

void StepBatch::adopt_current_as_old() {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t r = 0; r < groups_[g].responses.size(); ++r) {
      const auto logprobs = figures_of_tokens_.logprobs(g, r);
      terms_[g][r].old_logprobs.assign(logprobs.begin(), logprobs.end());
    }
  has_old_ = true;
}

std::vector<double> StepBatch::old_logprobs() const {
  std::vector<double> values;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t r = 0; r < groups_[g].responses.size(); ++r)
      for (std::size_t t = 0; t < groups_[g].responses[r].ids.size(); ++t)
        values.push_back(groups_[g].responses[r].loss_mask[t] ? terms_[g][r].old_logprobs[t] : 0.0);
  return values;
}

void StepBatch::set_old_logprobs(std::span<const double> values) {
  if (std::ssize(values) != figures_.response_ids)
    throw DataError(
        {fmt::format("the checkpoint holds {} old log-probs for a batch of {} response "
                     "tokens (it belongs to other rollouts).",
                     values.size(), figures_.response_ids)});
  auto next = values.begin();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t r = 0; r < groups_[g].responses.size(); ++r) {
      const auto end = next + std::ssize(groups_[g].responses[r].ids);
      terms_[g][r].old_logprobs.assign(next, end);
      next = end;
    }
  has_old_ = true;
}

ResponseSpans StepBatch::spans(std::size_t group, std::size_t response, std::size_t first,
                               std::size_t count) const {
  const Response& data = groups_[group].responses[response];
  const Terms& terms = terms_[group][response];
  const auto part = [&](std::span<const double> values) {
    return values.empty() ? values : values.subspan(first, count);
  };
  return {.logprobs = part(figures_of_tokens_.logprobs(group, response)),
          .entropies = part(figures_of_tokens_.entropies(group, response)),
          .old_logprobs = has_old_ ? part(terms.old_logprobs) : std::span<const double>(),
          .ref_logprobs = part(data.ref_logprobs),
          .advantages = part(terms.advantages),
          .loss_mask = std::span(data.loss_mask).subspan(first, count),
          .weight = terms.weight};
}

EdgeCoefficients StepBatch::coefficients(const PackedBatch& microbatch) const {
  COPPICE_CHECK(traits_of(loss_.kind).token_local, "loss {} needs whole responses",
                traits_of(loss_.kind).name);
  return [this, &microbatch](std::int64_t first_edge, std::span<const double> logprobs,
                             std::span<const double> entropies, std::span<double> c,
                             std::span<double> e) {
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
      const PredictionEdge& edge = microbatch.edges[static_cast<std::size_t>(first_edge) + i];
      ResponseSpans token =
          spans(static_cast<std::size_t>(edge.group), static_cast<std::size_t>(edge.response),
                static_cast<std::size_t>(edge.offset), 1);
      token.logprobs = logprobs.subspan(i, 1);
      token.entropies = entropies.subspan(i, 1);
      LossSums unused;  // the step's sums are made in another order, see sums()
      policy_loss(loss_, token, c.subspan(i, 1), e.subspan(i, 1), unused);
    }
  };
}

LossSums StepBatch::sums() const {
  LossSums total;
  std::vector<double> c, e;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t r = 0; r < groups_[g].responses.size(); ++r) {
      const std::size_t tokens = groups_[g].responses[r].ids.size();
      c.resize(tokens);
      e.resize(tokens);
      LossSums sums;
      policy_loss(loss_, spans(g, r, 0, tokens), c, e, sums);
      total.add(sums);
    }
  return total;
}

}  // namespace coppice
