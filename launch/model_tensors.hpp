#pragma once
// Which logical tensors a model has, by Hugging Face name, without making the model.
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "model/model_config.hpp"

namespace coppice {

/// In the order of PolicyModel's parameters, fused ones taken apart.
///
/// Oracle    tests/launch/model_tensors_test.cpp: names and shapes of transformers' models
std::vector<ExpectedTensor> tensors_of(const ModelConfig& config);

}  // namespace coppice
