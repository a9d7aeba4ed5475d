#pragma once
// A weight with its gradient, and what others must know of it: which logical tensors it holds, who
// completes its gradient, whether it learns. Layers make parameters; optim and checkpoint only read
// this struct, so that none of the three knows another.
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.hpp"
#include "parallel/shard.hpp"

namespace coppice {

/// The ranks over which a parameter's gradient must be summed beyond data and context parallelism.
enum class ReductionGroup {
  kNone,                ///< sharded, or already identical on all ranks
  kTensor,              ///< all tensor-parallel ranks (norms under sequence parallelism)
  kSharedKeyValueHead,  ///< the tensor-parallel ranks that hold the same key-value head
};

/// Decoupled weight decay acts on matrices only.
enum class WeightDecay { kNo, kYes };

/// One logical tensor of the model (as checkpoints name it) inside a parameter.
struct ParameterPart {
  std::string name;            ///< Hugging Face name, "model.layers.0.self_attn.q_proj.weight"
  std::int64_t row_begin = 0;  ///< its first row in the parameter
  Shard shard;                 ///< which rectangle of the logical tensor these rows are
};

/// Layout    value and grad have the same shape; a fused parameter stacks its parts by rows
/// Dtypes    value: compute dtype; grad: f32 (f64 in an F64 run)
struct Parameter {
  std::string name;
  Tensor value;
  Tensor grad;  ///< without value where nothing learns
  std::vector<ParameterPart> parts;
  ReductionGroup reduction = ReductionGroup::kNone;
  WeightDecay weight_decay = WeightDecay::kNo;
  bool trainable = true;
};

/// Whether what is made learns: a reference model has no gradients.
enum class WithGradients { kNo, kYes };

/// Where the parameters of a model are made.
///
/// Dtypes    values have `dtype`; gradients have it too on the CPU (f32, or f64 in an F64 run)
struct ParameterStorage {
  Memory& memory;
  DType dtype = DType::kF32;
  WithGradients gradients = WithGradients::kYes;
};

/// Makes a parameter that stacks whole logical tensors by rows: the local shard of one rank of one.
/// Values and gradients are not initialised. Without gradients the parameter is not trainable.
///
/// Errors    ContractError if the parts' shapes do not stack
Parameter make_parameter(const ParameterStorage& storage, std::string name,
                         const std::vector<std::pair<std::string, Shape>>& parts,
                         WeightDecay weight_decay);

/// The rows of a tensor shaped like `parameter` (its value, gradient or a moment) that are `part`.
TensorView rows_of(const ParameterPart& part, TensorView like_parameter);

}  // namespace coppice
