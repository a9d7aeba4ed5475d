#include "rl/training_state.hpp"

#include <nlohmann/json.hpp>

namespace coppice {
namespace {

// Calls visit(name, field) for every field, so that reading and writing cannot drift apart.
template <class State, class Visit>
void for_each_field(State& state, Visit&& visit) {
  visit("step", state.step);
  visit("bad_steps", state.bad_steps);
  visit("bad_steps_in_a_row", state.bad_in_a_row);
  visit("fallbacks", state.fallbacks);
  visit("update_in_batch", state.update);
  visit("epoch", state.position.epoch);
  visit("groups_taken", state.position.taken);
  visit("seed", state.seed);
  visit("metrics_line", state.metrics_line);
}

void append(std::vector<StateTensor>& tensors, const std::string& folder,
            const Parameter& parameter, TensorView values) {
  for (const ParameterPart& part : parameter.parts)
    tensors.push_back({folder + part.name, part.shard, rows_of(part, values)});
}

}  // namespace

std::vector<StateTensor> parameter_tensors(std::span<Parameter* const> parameters) {
  std::vector<StateTensor> tensors;
  for (Parameter* parameter : parameters)
    append(tensors, "/parameters/", *parameter, parameter->value.view());
  return tensors;
}

std::vector<StateTensor> moment_tensors(AdamW& optimizer) {
  std::vector<StateTensor> tensors;
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const Parameter& parameter = *optimizer.parameters()[i];
    AdamW::Moments& moments = optimizer.moments()[i];
    if (!moments.exp_avg.has_value()) continue;
    append(tensors, "/optimizer/exp_avg/", parameter, moments.exp_avg.view());
    append(tensors, "/optimizer/exp_avg_sq/", parameter, moments.exp_avg_sq.view());
  }
  return tensors;
}

std::string to_json(const TrainerState& state) {
  nlohmann::ordered_json json;
  for_each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
  return json.dump();
}

TrainerState trainer_state_from_json(const std::string& text, const std::string& place) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  TrainerState state;
  Problems problems;
  if (!json.is_object()) {
    problems.add(
        "{}: the trainer's state is not a JSON object (a model can only be trained from "
        "its start). Resume from a checkpoint that `coppice train` wrote.",
        place);
    problems.throw_if_any<DataError>();
  }
  for_each_field(state, [&]<class Field>(const char* name, Field& field) {
    const auto found = json.find(name);
    const bool is_text = std::is_same_v<Field, std::string>;
    if (found == json.end() || (is_text ? !found->is_string() : !found->is_number_integer()) ||
        (!is_text && !found->is_number_unsigned()))
      problems.add("{}: \"{}\" of the trainer's state is missing or has another type.", place,
                   name);
    else
      field = found->template get<Field>();
  });
  problems.throw_if_any<DataError>();
  return state;
}

}  // namespace coppice
