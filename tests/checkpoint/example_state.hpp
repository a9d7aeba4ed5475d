#pragma once
// A small run's state for checkpoint tests: two parameters with their moments, and a header.
#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

inline CheckpointHeader example_header(CheckpointKind kind = CheckpointKind::kCheckpoint) {
  CheckpointHeader header;
  header.kind = kind;
  header.step = 12;
  header.optimizer_step = 11;
  header.program_version = "9.8.7";
  header.model_config_json = R"({"model_type": "llama", "note": "ä"})";
  if (kind == CheckpointKind::kCheckpoint) {
    header.run_config_textproto = "seed: 1\n";
    header.trainer_json = R"({"cursor": 5})";
    header.trainer_arrays = {{"old_logprobs", {-0.1, -1e-300, -0.3}}, {"none", {}}};
  }
  header.tokenizer = {{"merges.txt", std::string("a b\0c\n", 6)}, {"empty.json", ""}};
  return header;
}

/// Holds tensors and the list that names them.
struct ExampleState {
  std::vector<Tensor> tensors;
  std::vector<StateTensor> list;

  void add(const std::string& dataset, Tensor tensor) {
    tensors.push_back(std::move(tensor));
    TensorView view = tensors.back();
    list.push_back({dataset, Shard::whole(view.shape()), view});
  }
};

/// Parameters and moments; `values` false: the same list, filled with ones.
inline ExampleState example_state(TestContext& context, DType dtype, bool values = true) {
  ExampleState state;
  state.tensors.reserve(16);
  for (const char* group : {"/parameters/", "/optimizer/exp_avg/", "/optimizer/exp_avg_sq/"}) {
    for (const auto& [name, shape] : {std::pair("model.norm.weight", Shape{5}),
                                      std::pair("model.embed_tokens.weight", Shape{7, 3})}) {
      const std::string dataset = std::string(group) + name;
      state.add(dataset,
                values ? context.random(dtype, shape, dataset) : context.filled(dtype, shape, 1.0));
    }
  }
  return state;
}

/// Still ones, as where a load was refused before it began.
template <class State>
bool untouched(const State& state) {
  return std::ranges::all_of(state.tensors, [](const Tensor& tensor) {
    return std::ranges::all_of(values_of(tensor), [](double value) { return value == 1.0; });
  });
}

/// All NaN, as where damage was met on the way.
template <class State>
bool spoilt(const State& state) {
  return std::ranges::all_of(state.tensors, [](const Tensor& tensor) {
    return std::ranges::all_of(values_of(tensor), [](double value) { return std::isnan(value); });
  });
}

}  // namespace coppice::test
