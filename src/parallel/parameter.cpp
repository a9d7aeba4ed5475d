#include "parallel/parameter.hpp"

#include "core/convert.hpp"
#include "core/copy.hpp"

namespace coppice {

Parameter make_parameter(const ParameterStorage& storage, std::string name,
                         const std::vector<PartShard>& parts, WeightDecay weight_decay,
                         std::int64_t padding_rows) {
  COPPICE_CHECK(!parts.empty(), "parameter {} without parts", name);
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.weight_decay = weight_decay;
  parameter.trainable = storage.gradients == WithGradients::kYes;
  const Shape& first = parts.front().shard.local_shape;
  std::int64_t rows = 0;
  for (const PartShard& part : parts) {
    const Shape& shape = part.shard.local_shape;
    COPPICE_CHECK(shape.rank() >= 1 && shape.with(0, 0) == first.with(0, 0),
                  "parameter {}: {} of {} does not stack on {}", parameter.name, part.name, shape,
                  first);
    parameter.parts.push_back({part.name, rows, part.shard, part.reduction, part.is_primary});
    rows += shape[0];
  }
  const Shape shape = first.with(0, rows + padding_rows);
  parameter.value = Tensor(storage.memory, storage.dtype, shape, "parameters");
  const DType full = accumulation_of(storage.dtype);
  if (parameter.trainable) {
    parameter.grad = Tensor(storage.memory, full, shape, "gradients");
    if (full != storage.dtype) {
      parameter.master = Tensor(storage.memory, full, shape, "master_weights");
    }
  }
  set_zero(storage.memory, parameter.value.view().rows(rows, padding_rows));
  if (parameter.has_master()) {
    set_zero(storage.memory, parameter.master.view().rows(rows, padding_rows));
  }
  return parameter;
}

void round_master(ExecContext& ctx, Parameter& parameter) {
  if (parameter.has_master()) convert(ctx, parameter.master, parameter.value);
}

TensorView rows_of(const ParameterPart& part, TensorView like_parameter) {
  return like_parameter.rows(part.row_begin, part.shard.local_shape[0]);
}

}  // namespace coppice
