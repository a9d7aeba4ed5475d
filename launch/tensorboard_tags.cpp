#include "launch/tensorboard_tags.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;

struct Panel {
  std::string_view metric, panel, unit;
};

constexpr std::array kPanels = {
    Panel{"loss", "loss", "no unit"},
    Panel{"policy_loss", "loss", "no unit"},
    Panel{"kl", "policy", "nats per token"},
    Panel{"entropy", "policy", "nats per token"},
    Panel{"clip_fraction", "policy", "share of tokens"},
    Panel{"ratio_mean", "policy", "no unit"},
    Panel{"ratio_max", "policy", "no unit"},
    Panel{"grad_norm", "optimizer", "no unit"},
    Panel{"learning_rate", "optimizer", "no unit"},
    Panel{"reward_mean", "reward", "reward"},
    Panel{"reward_std", "reward", "reward"},
    Panel{"advantage_abs_mean", "reward", "no unit"},
    Panel{"zero_std_groups", "reward", "groups"},
    Panel{"rows", "batch", "token rows"},
    Panel{"logical_rows", "batch", "token rows"},
    Panel{"sharing_ratio", "batch", "logical rows / rows"},
    Panel{"visible_pairs", "batch", "pairs"},
    Panel{"edge_rows", "batch", "token rows"},
    Panel{"alignment_rows", "batch", "token rows"},
    Panel{"loss_tokens", "batch", "tokens"},
    Panel{"groups", "batch", "count"},
    Panel{"responses", "batch", "count"},
    Panel{"response_length_mean", "batch", "tokens"},
    Panel{"truncated_fraction", "batch", "share of responses"},
    Panel{"microbatches", "batch", "count"},
    Panel{"step_seconds", "time", "s"},
    Panel{"rows_per_second", "speed", "token rows / s"},
    Panel{"logical_tokens_per_second", "speed", "token rows / s"},
    Panel{"executed_flops", "speed", "FLOP"},
    Panel{"mfu", "speed", "share of the peak"},
    Panel{"peak_memory_bytes", "memory", "bytes"},
    Panel{"peak_resident_bytes", "memory", "bytes"},
    Panel{"communication_bytes", "communication", "bytes"},
    Panel{"skipped", "run", "1: skipped"},
    Panel{"bad_steps", "run", "steps so far"},
    Panel{"fallbacks", "run", "groups so far"},
};

TaggedValue tagged(std::string_view metric, double value) {
  for (const Panel& panel : kPanels)
    if (panel.metric == metric)
      return {fmt::format("{}/{}", panel.panel, metric), std::string(panel.unit), value};
  // A metric that is newer than this list is shown all the same.
  return {fmt::format("other/{}", metric), "", value};
}

std::string_view unit_of_traffic(std::string_view figure) {
  return figure == "calls" ? "count" : figure == "seconds" ? "s" : "bytes";
}

void put(std::string_view metric, const Json& value, std::vector<TaggedValue>& values) {
  if (value.is_number())
    values.push_back(tagged(metric, value.get<double>()));
  else if (value.is_boolean())
    values.push_back(tagged(metric, value.get<bool>() ? 1 : 0));
}

}  // namespace

std::vector<TaggedValue> tagged_values(const std::string& metrics_line) {
  const Json line = Json::parse(metrics_line, nullptr, false);
  COPPICE_CHECK(line.is_object(), "a metrics line is {}", metrics_line);
  std::vector<TaggedValue> values;
  for (const auto& [name, value] : line.items()) {
    if (name == "step") continue;
    if (name == "seconds") {
      for (const auto& [phase, seconds] : value.items())
        values.push_back({"time/" + phase, "s", seconds.get<double>()});
    } else if (name == "communication") {
      for (const auto& [axis, traffic] : value.items())
        for (const auto& [figure, count] : traffic.items())
          values.push_back({fmt::format("communication/{}/{}", axis, figure),
                            std::string(unit_of_traffic(figure)), count.get<double>()});
    } else {
      put(name, value, values);
    }
  }
  const double rows = line.value("rows", 0.0), logical = line.value("logical_rows", 0.0);
  if (rows > 0) values.push_back(tagged("sharing_ratio", logical / rows));
  return values;
}

}  // namespace coppice
