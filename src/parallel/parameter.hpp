#pragma once
// A weight with its gradient, and what others must know of it: which logical tensors it holds, who
// completes their gradients, whether it learns. Layers make parameters; optim and checkpoint only
// read this struct, so that none of the three knows another.
#include <string>
#include <vector>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"
#include "parallel/shard.hpp"

namespace coppice {

/// The tensor-parallel ranks over which a part's gradient must be summed; data and context
/// parallelism come on top, for every part alike.
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
  ReductionGroup reduction = ReductionGroup::kNone;
  /// False where a tensor-parallel rank before this one holds the same rectangle: that one counts
  /// it in the gradient norm and writes it to checkpoints.
  bool is_primary = true;
};

/// Layout    value, master and grad have the same shape; a fused parameter stacks its parts by
/// rows;
///           rows behind the last part are padding and always 0, in all of them alike
/// Dtypes    value: compute dtype; grad and master: f32 (grad f64 in an F64 run)
struct Parameter {
  std::string name;
  Tensor value;
  /// Where value is bf16 and learns: what the update changes and checkpoints hold. After every
  /// change value is made anew from it, by rounding. Where the update is sharded, only the rows
  /// that this rank updates are current (GradientReducer::updated()); values are gathered, this is
  /// not.
  Tensor master;
  Tensor grad;  ///< without value where nothing learns
  std::vector<ParameterPart> parts;
  WeightDecay weight_decay = WeightDecay::kNo;
  bool trainable = true;
  /// The gradient is 0 whatever its memory holds: the next product sets it instead of adding to it,
  /// which saves a pass over memory. Only where `product_sets_grad`.
  bool grad_is_unset = false;
  /// What adds to the gradient is a product of matrices: a linear's weight.
  bool product_sets_grad = false;

  std::int64_t rows() const { return value.shape()[0]; }
  bool has_master() const { return master.dtype() != value.dtype() && master.numel() > 0; }
  /// The weights at their full precision: master, or value where there is none.
  TensorView weights() { return has_master() ? master.view() : value.view(); }
  ConstTensorView weights() const { return has_master() ? master.view() : value.view(); }
};

/// Whether what is made learns: a reference model has no gradients.
enum class WithGradients { kNo, kYes };

/// Where the parameters of a model are made.
///
/// Dtypes    values have `dtype`; gradients what its sums have: f32 for bf16, else `dtype`
struct ParameterStorage {
  Memory& memory;
  DType dtype = DType::kF32;
  WithGradients gradients = WithGradients::kYes;
};

/// One part of a parameter to be made: everything but its place.
struct PartShard {
  std::string name;
  Shard shard;
  ReductionGroup reduction = ReductionGroup::kNone;
  bool is_primary = true;
};

/// Makes a parameter that stacks the given rectangles by rows, with rows of padding behind them.
/// Values are not initialised, but for padding. Without gradients the parameter is not trainable.
///
/// Errors    ContractError if the rectangles do not stack
Parameter make_parameter(const ParameterStorage& storage, std::string name,
                         const std::vector<PartShard>& parts, WeightDecay weight_decay,
                         std::int64_t padding_rows = 0);

/// value = master, rounded, where there is one: after masters were read or drawn.
void round_master(ExecContext& ctx, Parameter& parameter);

/// The rows of a tensor shaped like `parameter` (its value, gradient or a moment) that are `part`.
TensorView rows_of(const ParameterPart& part, TensorView like_parameter);

}  // namespace coppice
