#include "parallel/parameter.hpp"

namespace coppice {

Parameter make_parameter(const ParameterStorage& storage, std::string name,
                         const std::vector<std::pair<std::string, Shape>>& parts,
                         WeightDecay weight_decay) {
  COPPICE_CHECK(!parts.empty(), "parameter {} without parts", name);
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.weight_decay = weight_decay;
  parameter.trainable = storage.gradients == WithGradients::kYes;
  std::int64_t rows = 0;
  for (const auto& [part_name, shape] : parts) {
    const Shape& first = parts.front().second;
    COPPICE_CHECK(shape.rank() >= 1 && shape.with(0, 0) == first.with(0, 0),
                  "parameter {}: {} of {} does not stack on {}", parameter.name, part_name, shape,
                  first);
    parameter.parts.push_back({part_name, rows, Shard::whole(shape)});
    rows += shape[0];
  }
  const Shape shape = parts.front().second.with(0, rows);
  parameter.value = Tensor(storage.memory, storage.dtype, shape, "parameters");
  if (parameter.trainable) {
    parameter.grad = Tensor(storage.memory, storage.dtype, shape, "gradients");
  }
  return parameter;
}

TensorView rows_of(const ParameterPart& part, TensorView like_parameter) {
  return like_parameter.rows(part.row_begin, part.shard.local_shape[0]);
}

}  // namespace coppice
