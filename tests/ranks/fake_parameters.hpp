#pragma once
// A handful of parameters with every kind of part a model has, cut for one rank of a grid, and the
// logical tensors behind them. No layers: who holds what is written out here a second time.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/process_grid.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

/// Of one logical tensor: element -> value. Elements count row-major over the global shape.
using LogicalValues = std::map<std::string, std::vector<double>>;

/// Another value for every element of every logical tensor.
inline double value_of(const std::string& name, std::int64_t element) {
  return static_cast<double>(element) + 1000.0 * static_cast<double>(name[0]);
}

/// `heads` key-value heads of 2 rows each, shared where there are more tensor ranks than heads.
struct FakeParameters {
  FakeParameters(ProcessGrid& grid, int heads, DType dtype, Memory& memory);

  std::vector<Parameter*> list();
  /// Shapes of all logical tensors, the frozen one included.
  std::map<std::string, Shape> shapes() const;
  /// Fills the parts of value or grad by name and element, and padding rows with zeros.
  void fill(Tensor Parameter::*what,
            const std::function<double(const std::string&, std::int64_t)>& value_of);
  /// Calls visit(parameter, part, element, row, column of the parameter) for every element that
  /// this rank holds.
  void for_each(const std::function<void(Parameter&, const ParameterPart&, std::int64_t element,
                                         std::int64_t row, std::int64_t column)>& visit);

  std::vector<std::unique_ptr<Parameter>> parameters;
};

inline FakeParameters::FakeParameters(ProcessGrid& grid, int heads, DType dtype, Memory& memory) {
  const int tp = grid.sizes().tensor, t = grid.coordinates().tp_rank;
  const int sharers = std::max(1, tp / heads);
  const bool first_of_tp = t == 0, first_sharer = t % sharers == 0;
  const auto add = [&](const char* name, Shape local, WeightDecay decay,
                       std::vector<ParameterPart> parts) -> Parameter& {
    auto& p = *parameters.emplace_back(std::make_unique<Parameter>());
    p.name = name;
    p.value = Tensor(memory, dtype, local, "parameters");
    p.grad = Tensor(memory, dtype, local, "gradients");
    p.parts = std::move(parts);
    p.weight_decay = decay;
    return p;
  };
  const auto part = [](std::string name, std::int64_t row, Shard shard, ReductionGroup reduction,
                       bool primary) {
    return ParameterPart{.name = std::move(name),
                         .row_begin = row,
                         .shard = std::move(shard),
                         .reduction = reduction,
                         .is_primary = primary};
  };
  const auto yes = WeightDecay::kYes, no = WeightDecay::kNo;

  // 13 rows over tp: padded to equal local rows; the last ranks have fewer, or none.
  const std::int64_t padded = (13 + tp - 1) / tp, begin = std::min<std::int64_t>(13, t * padded);
  const std::int64_t true_rows = std::min<std::int64_t>(padded, 13 - begin);
  add("vocabulary", {padded, 3}, yes,
      {part("vocabulary", 0, Shard::along({13, 3}, 0, begin, true_rows), ReductionGroup::kNone,
            true)});
  // Each tensor rank's own rows of the sequence.
  add("norm", {5}, no, {part("norm", 0, Shard::whole({5}), ReductionGroup::kTensor, first_of_tp)});
  // The same gradient on every tensor rank already.
  add("bias", {7}, no, {part("bias", 0, Shard::whole({7}), ReductionGroup::kNone, first_of_tp)});
  // Fused: one query head of 2 rows per tensor rank, and this rank's key and value heads.
  const int head = t / sharers, held = std::max(1, heads / tp);
  const auto key_value = [&](const char* name, std::int64_t row) {
    return part(
        name, row, Shard::along({2 * heads, 4}, 0, 2 * (sharers > 1 ? head : t * held), 2 * held),
        sharers > 1 ? ReductionGroup::kSharedKeyValueHead : ReductionGroup::kNone, first_sharer);
  };
  add("qkv", {2 + 4 * held, 4}, yes,
      {part("q", 0, Shard::along({2 * tp, 4}, 0, 2 * t, 2), ReductionGroup::kNone, true),
       key_value("k", 2), key_value("v", 2 + 2 * held)});
  // Split by columns.
  add("output", {4, 3}, yes,
      {part("output", 0, Shard::along({4, 3 * tp}, 1, 3 * t, 3), ReductionGroup::kNone, true)});
  Parameter& frozen =
      add("frozen", {2, 2}, yes,
          {part("frozen", 0, Shard::whole({2, 2}), ReductionGroup::kTensor, first_of_tp)});
  frozen.trainable = false;
  frozen.grad = Tensor();
}

inline std::vector<Parameter*> FakeParameters::list() {
  std::vector<Parameter*> all;
  for (const auto& parameter : parameters) all.push_back(parameter.get());
  return all;
}

inline std::map<std::string, Shape> FakeParameters::shapes() const {
  std::map<std::string, Shape> shapes;
  for (const auto& parameter : parameters)
    for (const ParameterPart& part : parameter->parts) shapes[part.name] = part.shard.global_shape;
  return shapes;
}

inline void FakeParameters::for_each(
    const std::function<void(Parameter&, const ParameterPart&, std::int64_t, std::int64_t,
                             std::int64_t)>& visit) {
  for (const auto& parameter : parameters)
    for (const ParameterPart& part : parameter->parts) {
      const bool matrix = part.shard.local_shape.rank() == 2;
      const std::int64_t columns = matrix ? part.shard.local_shape[1] : 1;
      const std::int64_t global_columns = matrix ? part.shard.global_shape[1] : 1;
      const std::int64_t first_column = matrix ? part.shard.global_offset[1] : 0;
      for (std::int64_t i = 0; i < part.shard.local_shape[0]; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          visit(*parameter, part,
                (part.shard.global_offset[0] + i) * global_columns + first_column + j,
                part.row_begin + i, j);
    }
}

/// Element (row, column) of a contiguous f32 or f64 tensor.
inline double element_of(ConstTensorView tensor, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * (tensor.shape().rank() == 2 ? tensor.shape()[1] : 1) + column;
  return tensor.dtype() == DType::kF64 ? tensor.data<double>()[at]
                                       : static_cast<double>(tensor.data<float>()[at]);
}
inline void set_element(TensorView tensor, std::int64_t row, std::int64_t column, double value) {
  const std::int64_t at = row * (tensor.shape().rank() == 2 ? tensor.shape()[1] : 1) + column;
  if (tensor.dtype() == DType::kF64)
    tensor.data<double>()[at] = value;
  else
    tensor.data<float>()[at] = static_cast<float>(value);
}

inline void FakeParameters::fill(
    Tensor Parameter::*what,
    const std::function<double(const std::string&, std::int64_t)>& value_of) {
  for (const auto& parameter : parameters) {
    Tensor& tensor = parameter.get()->*what;
    if (!tensor.has_value()) continue;
    std::fill_n(tensor.view().bytes(), tensor.size_bytes(), std::byte{0});
  }
  for_each([&](Parameter& parameter, const ParameterPart& part, std::int64_t element,
               std::int64_t row, std::int64_t column) {
    Tensor& tensor = parameter.*what;
    if (tensor.has_value()) set_element(tensor, row, column, value_of(part.name, element));
  });
}

/// Every grid of a session's ranks, and each number of key-value heads that fits it.
struct FakeGrid {
  GridSizes sizes;
  int heads;
};
inline std::vector<FakeGrid> fake_grids(int ranks) {
  std::vector<FakeGrid> grids;
  for (int tensor = 1; tensor <= ranks; ++tensor)
    for (int context = 1; tensor * context <= ranks; ++context)
      for (int heads : {1, 2}) {
        if (ranks % (tensor * context) != 0) continue;
        if (heads % tensor != 0 && tensor % heads != 0) continue;
        grids.push_back({{tensor, context, ranks / (tensor * context)}, heads});
      }
  return grids;
}

}  // namespace coppice::test
