#include "rl/naive_step.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/convert.hpp"
#include "reference/naive_attention.hpp"
#include "reference/naive_training.hpp"

namespace coppice::test {
namespace {

using reference::NaiveTraining;

constexpr double kClip = 0.2, kKl = 0.05, kEntropy = 0.01;

std::vector<std::int32_t> tokens(const std::string& name, std::int64_t count) {
  const RandomStream stream(13, name);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(
        static_cast<std::int32_t>(stream.below(kStepVocabulary, static_cast<unsigned>(i))));
  }
  return ids;
}

/// The rows of groups, packed or one path after the other; an edge for every token in the loss, in
/// the order of groups, responses and tokens.
NaiveTraining::Rows rows_of(const std::vector<Group>& groups, bool grouped) {
  NaiveTraining::Rows rows;
  std::vector<reference::TreeSegment> tree;
  const auto push = [&](const std::vector<std::int32_t>& ids, std::int64_t first, int parent) {
    tree.push_back({std::ssize(ids), parent});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      rows.tokens.push_back(ids[i]);
      rows.positions.push_back(static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i));
    }
    return std::ssize(rows.tokens);
  };
  for (const Group& group : groups) {
    const auto prompt = std::ssize(group.prompt_ids);
    std::int64_t prompt_end = 0;
    if (grouped) prompt_end = push(group.prompt_ids, 0, -1);
    const int parent = static_cast<int>(tree.size()) - 1;
    for (const Response& response : group.responses) {
      auto end = prompt_end;
      if (grouped) {
        end = push(response.ids, prompt, parent);
      } else {
        auto path = group.prompt_ids;
        path.insert(path.end(), response.ids.begin(), response.ids.end());
        end = push(path, 0, -1);
        prompt_end = end - std::ssize(response.ids);
      }
      for (std::int64_t t = 0; t < std::ssize(response.ids); ++t) {
        const auto i = static_cast<std::size_t>(t);
        if (response.loss_mask[i] == 0) continue;
        const auto own = end - std::ssize(response.ids) + t - 1;
        rows.edges.push_back({t == 0 ? prompt_end - 1 : own, response.ids[i]});
      }
    }
  }
  rows.mask = reference::visibility(tree);
  return rows;
}

/// GRPO by its formula: clipped ratio, KL estimator k3, entropy bonus, mean over responses of means
/// over tokens.
struct NaiveLoss {
  std::vector<double> advantages, old, reference, weights;  // of each edge

  explicit NaiveLoss(const std::vector<Group>& groups) {
    double responses = 0;
    for (const Group& group : groups) {
      for (const Response& response : group.responses) {
        const auto in_loss = static_cast<double>(response.loss_tokens());
        responses += in_loss > 0;
        for (std::size_t t = 0; t < response.ids.size(); ++t) {
          if (response.loss_mask[t] == 0) continue;
          advantages.push_back(response.advantages[t]);
          old.push_back(response.old_logprobs[t]);
          reference.push_back(response.ref_logprobs[t]);
          weights.push_back(1 / in_loss);
        }
      }
    }
    for (double& weight : weights) weight /= responses;
  }

  NaiveTraining::Coefficients of(const reference::Logprobs& scores, double& loss) const {
    NaiveTraining::Coefficients result;
    loss = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double ratio = std::exp(scores.logprobs[i] - old[i]), a = advantages[i];
      const double held = std::min(std::max(ratio, 1 - kClip), 1 + kClip);
      const bool clipped = held * a < ratio * a;
      const double away = reference[i] - scores.logprobs[i];
      loss += weights[i] * (-(clipped ? held : ratio) * a + kKl * (std::exp(away) - away - 1) -
                            kEntropy * scores.entropies[i]);
      result.c.push_back(weights[i] * ((clipped ? 0 : -ratio * a) + kKl * (1 - std::exp(away))));
      result.e.push_back(-weights[i] * kEntropy);
    }
    return result;
  }
};

std::vector<Group> two_groups(int draw) {
  std::vector<Group> groups;
  const std::vector<std::vector<std::int64_t>> lengths{{17, 13, 16, 1}, {5, 7, 0, 4}};
  for (const auto& of : lengths) {
    const auto g = groups.size();
    Group group{fmt::format("g{}", g), tokens(fmt::format("p{}/{}", draw, g), of[0]), {}, 1};
    for (std::size_t r = 1; r < of.size(); ++r) {
      Response response;
      response.ids = tokens(fmt::format("r{}/{}/{}", draw, g, r), of[r]);
      response.loss_mask.assign(response.ids.size(), 1);
      if (response.ids.size() > 8) response.loss_mask[3] = 0;
      group.responses.push_back(std::move(response));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

NaiveStep naive_step(const NaiveTraining& model, const std::vector<Group>& groups, bool grouped) {
  const NaiveLoss loss(groups);
  NaiveStep step;
  step.gradients = model
                       .run(rows_of(groups, grouped), 1.0,
                            [&](const auto& scores) { return loss.of(scores, step.loss); })
                       .gradients;
  return step;
}

double exact(double value) { return value; }
double in_bf16(double value) { return to_f32(to_bf16(value)); }

void record(const NaiveTraining& model, std::vector<Group>& groups) {
  std::vector<double> logprobs;
  model.run(rows_of(groups, true), 1.0, [&](const auto& scores) {
    logprobs = scores.logprobs;
    return NaiveTraining::Coefficients{std::vector<double>(logprobs.size()),
                                       std::vector<double>(logprobs.size())};
  });
  const RandomStream random(17, "recorded");
  std::size_t edge = 0;
  for (Group& group : groups) {
    for (Response& response : group.responses) {
      for (std::size_t t = 0; t < response.ids.size(); ++t) {
        const double own = response.loss_mask[t] != 0 ? logprobs[edge] : 0;
        constexpr double kAway[] = {-0.4, -0.06, 0.0, 0.06, 0.4};
        response.old_logprobs.push_back(own + kAway[random.below(5, edge)]);
        response.ref_logprobs.push_back(own + 0.1 * random.normal(edge));
        response.advantages.push_back(random.normal(1000 + edge));
        edge += response.loss_mask[t] != 0;
      }
    }
  }
}

double of_whole(const Gradients& a, const Gradients& exact) {
  std::vector<double> all_a, all_exact;
  for (const auto& [name, gradient] : exact) {
    all_a.insert(all_a.end(), a.at(name).begin(), a.at(name).end());
    all_exact.insert(all_exact.end(), gradient.begin(), gradient.end());
  }
  return relative_difference(all_a, all_exact);
}

}  // namespace

TrainerConfig step_config(Sharing sharing) {
  TrainerConfig config = tiny_trainer_config();
  config.loss.kl_coef = kKl;
  config.loss.entropy_coef = kEntropy;
  config.batching.sharing = sharing;
  return config;
}

std::vector<Group> recorded_groups(const TinyCase& tiny, int draw) {
  TinyModel weights(config_of(tiny), DType::kF64);
  std::vector<Group> groups = two_groups(draw);
  record({config_of(tiny), weights.weights(), exact}, groups);
  return groups;
}

void StepErrors::add(const TinyCase& tiny, int draw, bool grouped, const NaiveStep& trained) {
  TinyModel weights(config_of(tiny), DType::kF64);
  NaiveTraining naive{config_of(tiny), weights.weights(), exact};
  const std::vector<Group> groups = recorded_groups(tiny, draw);
  const NaiveStep right = naive_step(naive, groups, grouped);
  naive.stored = in_bf16;
  const NaiveStep plain = naive_step(naive, groups, grouped);
  const double plain_error = of_whole(plain.gradients, right.gradients);
  EXPECT_LE(of_whole(trained.gradients, right.gradients), 2 * plain_error)
      << tiny.name() << ", batch " << draw;
  EXPECT_LT(plain_error, 0.1) << "too ill conditioned to show anything";
  squares_ += std::pow(trained.loss - right.loss, 2);
  plain_squares_ += std::pow(plain.loss - right.loss, 2);
}

void StepErrors::expect_right_losses() const {
  EXPECT_LE(std::sqrt(squares_), 2 * std::sqrt(plain_squares_));
}

}  // namespace coppice::test
