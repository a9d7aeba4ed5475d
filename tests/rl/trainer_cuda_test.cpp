// A whole GRPO training step in bf16 on a CUDA device, real or emulated, through the trainer: plan,
// forward, loss, backward, clipping, AdamW. The answer is a plain model in double; the bound is
// what the same loops lose when memory holds bf16. Prompts are shared and repeated.
#include <gtest/gtest.h>

#include "core/convert.hpp"
#include "core/cuda/runtime.hpp"
#include "reference/naive_attention.hpp"
#include "reference/naive_training.hpp"
#include "rl/training_run.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using namespace test;
using reference::NaiveTraining;
using Gradients = std::map<std::string, std::vector<double>>;

constexpr double kClip = 0.2, kKl = 0.05, kEntropy = 0.01;
constexpr std::int64_t kVocabulary = 151;

std::vector<TinyCase> cases() {
  return {{"Llama", false, 2, 1, 64, kVocabulary, 64},
          {"Qwen2", true, 1, 1, 64, kVocabulary, 64},
          {"Qwen3", false, 3, 1, 64, kVocabulary, 64}};
}

std::vector<std::int32_t> tokens(const std::string& name, std::int64_t count) {
  const RandomStream stream(13, name);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>(stream.below(kVocabulary, static_cast<unsigned>(i))));
  }
  return ids;
}

/// 63 rows with shared prompts, 101 without.
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

struct Step {
  double loss = 0;
  Gradients gradients;
};

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

Step naive_step(const NaiveTraining& model, const std::vector<Group>& groups, bool grouped) {
  const NaiveLoss loss(groups);
  Step step;
  step.gradients = model
                       .run(rows_of(groups, grouped), 1.0,
                            [&](const auto& scores) { return loss.of(scores, step.loss); })
                       .gradients;
  return step;
}

double exact(double value) { return value; }
double in_bf16(double value) { return to_f32(to_bf16(value)); }

/// Old log-probs around the model's own, inside the clip range and outside, none near its ends.
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

TrainerConfig trainer_config(Sharing sharing) {
  TrainerConfig config = tiny_trainer_config();
  config.loss.kl_coef = kKl;
  config.loss.entropy_coef = kEntropy;
  config.batching.sharing = sharing;
  return config;
}

struct Trained {
  Step step;
  Gradients before, after;  // weights
};

Trained train(const TinyCase& tiny, const std::vector<Group>& groups, Sharing sharing) {
  TrainingRun run(groups, trainer_config(sharing), {DType::kBF16, kCudaDevice, tiny});
  Trained result;
  result.before = run.model().weights();
  const auto metrics = run.trainer().step();
  result.step = {metrics.value().loss.value(), run.model().gradients()};
  result.after = run.model().weights();
  for (const Parameter* parameter : run.model()->parameters()) {
    EXPECT_EQ(values_of(parameter->value), rounded(values_of(parameter->master), DType::kBF16))
        << parameter->name;
  }
  return result;
}

double of_whole(const Gradients& a, const Gradients& exact) {
  std::vector<double> all_a, all_exact;
  for (const auto& [name, gradient] : exact) {
    all_a.insert(all_a.end(), a.at(name).begin(), a.at(name).end());
    all_exact.insert(all_exact.end(), gradient.begin(), gradient.end());
  }
  return relative_difference(all_a, all_exact);
}

class TrainerCuda : public testing::TestWithParam<Sharing> {};
INSTANTIATE_TEST_SUITE_P(Packing, TrainerCuda,
                         testing::Values(Sharing::kGrouped, Sharing::kRepeated), [](const auto& p) {
                           return p.param == Sharing::kGrouped ? "Grouped" : "Repeated";
                         });

// Mutations seen red: no residual gradient under the attention norm, no gradient of the embedding,
// gradients of q and k not turned back. One loss may be right by luck, so the losses of many
// batches are held against each other.
TEST_P(TrainerCuda, ErrsInAStepAtMostTwiceAsMuchAsThePlainModelInBf16) {
  double loss_error = 0, plain_loss_error = 0;
  for (const TinyCase& tiny : cases()) {
    for (int draw = 0; draw < 4; ++draw) {
      TinyModel weights(config_of(tiny), DType::kF64);
      NaiveTraining naive{config_of(tiny), weights.weights(), exact};
      auto groups = two_groups(draw);
      record(naive, groups);
      const bool grouped = GetParam() == Sharing::kGrouped;
      const Step right = naive_step(naive, groups, grouped);
      naive.stored = in_bf16;
      const Step plain = naive_step(naive, groups, grouped);
      const Trained trained = train(tiny, groups, GetParam());
      EXPECT_NE(trained.after, trained.before);
      const double error = of_whole(trained.step.gradients, right.gradients);
      const double plain_error = of_whole(plain.gradients, right.gradients);
      EXPECT_LE(error, 2 * plain_error) << tiny.name() << ", batch " << draw;
      EXPECT_LT(plain_error, 0.1);
      loss_error += std::pow(trained.step.loss - right.loss, 2);
      plain_loss_error += std::pow(plain.loss - right.loss, 2);
    }
  }
  EXPECT_LE(std::sqrt(loss_error), 2 * std::sqrt(plain_loss_error));
}

TEST_P(TrainerCuda, GivesTheSameBitsUnderEverySchedule) {
  const TinyCase tiny = cases()[0];
  TinyModel weights(config_of(tiny), DType::kF64);
  auto groups = two_groups(0);
  record({config_of(tiny), weights.weights(), exact}, groups);
  const Trained first = train(tiny, groups, GetParam());
  for (const int schedule : {1, 2}) {
    set_device_schedule(schedule);
    const Trained other = train(tiny, groups, GetParam());
    EXPECT_EQ(other.step.loss, first.step.loss);
    EXPECT_EQ(other.step.gradients, first.step.gradients);
    EXPECT_EQ(other.after, first.after);
  }
  set_device_schedule(0);
}

}  // namespace
}  // namespace coppice
