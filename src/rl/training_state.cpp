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

enum class Listed { kHeld, kSpokenFor };

// What of each part lies in `rows`. `values` holds the parameter's rows from `first` on.
void append(std::vector<StateTensor>& tensors, const std::string& folder,
            const Parameter& parameter, Listed listed, const RowRange& rows, TensorView values,
            std::int64_t first) {
  for (const ParameterPart& part : parameter.parts) {
    RowRange range = intersection(row_range_of(part), rows);
    if (listed == Listed::kSpokenFor && !part.is_primary) range = {part.row_begin, part.row_begin};
    Shard shard = part.shard;
    if (range.count() == 0) {
      range = {first, first};
    } else {
      shard.global_offset =
          shard.global_offset.with(0, shard.global_offset[0] + range.begin - part.row_begin);
    }
    shard.local_shape = shard.local_shape.with(0, range.count());
    tensors.push_back({folder + part.name, shard, values.rows(range.begin - first, range.count())});
  }
}

std::vector<StateTensor> list_parameters(std::span<Parameter* const> parameters, Listed listed,
                                         RowShare share) {
  std::vector<StateTensor> tensors;
  for (Parameter* parameter : parameters)
    append(tensors, "/parameters/", *parameter, listed, share.of(*parameter), parameter->weights(),
           0);
  return tensors;
}

std::vector<StateTensor> list_moments(AdamW& optimizer, Listed listed, RowShare share) {
  std::vector<StateTensor> tensors;
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const Parameter& parameter = *optimizer.parameters()[i];
    if (!parameter.trainable) continue;
    AdamW::Moments& moments = optimizer.moments()[i];
    const RowRange held = optimizer.share().of(parameter), rows = share.of(parameter);
    COPPICE_CHECK(intersection(held, rows).count() == rows.count(),
                  "rows {} to {} of {}: moments held of {} to {}", rows.begin, rows.end,
                  parameter.name, held.begin, held.end);
    append(tensors, "/optimizer/exp_avg/", parameter, listed, rows, moments.exp_avg.view(),
           held.begin);
    append(tensors, "/optimizer/exp_avg_sq/", parameter, listed, rows, moments.exp_avg_sq.view(),
           held.begin);
  }
  return tensors;
}

}  // namespace

std::vector<StateTensor> parameter_tensors(std::span<Parameter* const> parameters) {
  return list_parameters(parameters, Listed::kHeld, {});
}

std::vector<StateTensor> parameter_tensors(std::span<Parameter* const> parameters,
                                           RowShare spoken_for) {
  return list_parameters(parameters, Listed::kSpokenFor, spoken_for);
}

std::vector<StateTensor> moment_tensors(AdamW& optimizer) {
  return list_moments(optimizer, Listed::kHeld, optimizer.share());
}

std::vector<StateTensor> moment_tensors(AdamW& optimizer, RowShare spoken_for) {
  return list_moments(optimizer, Listed::kSpokenFor, spoken_for);
}

std::vector<StateTensor> on_stream(Stream& stream, std::vector<StateTensor> tensors) {
  for (StateTensor& tensor : tensors) tensor.stream = &stream;
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
