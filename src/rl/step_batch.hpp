#pragma once
// The groups of one step with everything the loss needs of them: advantages, weights from global
// denominators, old log-probs. All of it is known before the batch is cut into micro-batches, so no
// figure depends on the cut. What the model computes comes back here, token by token.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layers/vocab_parallel_logprob.hpp"
#include "model/packed_batch.hpp"
#include "rl/policy_loss.hpp"
#include "rl/rollouts.hpp"
#include "rl/token_figures.hpp"

namespace coppice {

/// What can be said of a batch without the model, in the metrics' words. Dropped groups count in
/// zero_std_groups only.
struct BatchFigures {
  std::int64_t groups = 0;
  std::int64_t responses = 0;
  std::int64_t truncated_responses = 0;
  std::int64_t response_ids = 0;  ///< masked or not
  std::int64_t logical_rows = 0;
  std::int64_t zero_std_groups = 0;
  std::optional<double> reward_mean, reward_std;
  std::optional<double> advantage_abs_mean;
};

class StepBatch {
 public:
  StepBatch(std::vector<Group> groups, const LossConfig& loss, const AdvantageConfig& advantage);

  std::span<const Group> groups() const { return groups_; }
  const BatchTotals& totals() const { return totals_; }
  const BatchFigures& figures() const { return figures_; }

  /// True where the ratio has something to compare with: the file's or adopted log-probs.
  bool has_old_logprobs() const { return has_old_; }
  /// True where several updates want old log-probs and the file has none: a pass of its own must
  /// compute them before the first.
  bool needs_old_logprobs() const {
    return uses_advantages_ && loss_.updates_per_batch > 1 && !has_old_ && totals_.tokens > 0;
  }
  /// The log-probs kept last become the old ones of the updates to come.
  void adopt_current_as_old();
  /// All old log-probs in order of groups, responses, tokens; 0 where the mask is 0. For resume.
  std::vector<double> old_logprobs() const;
  /// Errors    DataError if the number of values is another
  void set_old_logprobs(std::span<const double> values);

  /// The loss of a micro-batch's edges, for the head. Refers to both; a token-local loss only.
  EdgeCoefficients coefficients(const PackedBatch& microbatch) const;
  /// Keeps the model's figures of a micro-batch's edges.
  void keep(const PackedBatch& microbatch, std::span<const double> logprobs,
            std::span<const double> entropies) {
    figures_of_tokens_.keep(microbatch, logprobs, entropies);
  }
  /// Ends a pass over the batch: every rank gets what the others kept (rl/token_figures.hpp). Comes
  /// before sums() and adopt_current_as_old(); on one rank it only checks.
  void gather(Stream& stream, Communicator& replicas) {
    figures_of_tokens_.gather(stream, replicas, groups_, EdgeTokens::kInLoss);
  }
  /// Sums over the batch from what was kept, in the order of the groups: the same bits for every
  /// cut and, once gathered, on every rank.
  LossSums sums() const;

 private:
  struct Terms {
    double weight = 0.0;
    std::vector<double> advantages;  ///< [ids]; empty where the loss uses none
    std::vector<double> old_logprobs;
  };
  void add_group(Group group, const AdvantageConfig& advantage);
  void finish_figures();
  ResponseSpans spans(std::size_t group, std::size_t response, std::size_t first,
                      std::size_t count) const;

  LossConfig loss_;
  bool uses_advantages_;
  bool has_old_ = false;
  std::vector<Group> groups_;
  std::vector<std::vector<Terms>> terms_;  // per group and response
  TokenFigures figures_of_tokens_;
  BatchTotals totals_;
  BatchFigures figures_;
  std::vector<double> rewards_, absolute_advantages_;  // per response that has one
};

}  // namespace coppice
