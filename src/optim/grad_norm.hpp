#pragma once
// The one number that says how large a step's gradient is, and the factor that bounds it.
#include <span>

#include "core/exec_context.hpp"
#include "parallel/communicator.hpp"
#include "parallel/row_share.hpp"

namespace coppice {

/// Sum of squares over the gradients of all trainable parameters: of the rows in `share` of those
/// parts that this rank speaks for. Added up over all ranks, every element of every logical tensor
/// counts once, replicated, tied and shared ones too; padding rows do not count.
///
/// Dtypes    gradients f32 or f64; squares and sums in double
/// Parallel  local
/// Effects   reads gradients only; NaN or infinity in any of them shows in the result
/// Errors    ContractError if a trainable parameter has no gradient
/// Repeats   bitwise, for any thread count: blocks of fixed size are summed in order
/// Oracle    tests/optim/grad_norm_test.cpp
double sum_of_squares(ExecContext& ctx, std::span<Parameter* const> parameters,
                      RowShare share = {});

/// L2 norm over the gradients of one rank.
double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters);

/// L2 norm over the whole job: the root of all ranks' sum_of_squares().
///
/// Parallel  collective over `world`; the result has the same bits on every rank
/// Oracle    tests/ranks/gradient_reducer_test.cpp
double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters, RowShare share,
                        Communicator& world);

/// What gradients are multiplied by so that their norm does not exceed `max_grad_norm`:
/// max_grad_norm / (norm + 1e-6) where norm > max_grad_norm, else 1. 0 turns clipping off.
double clip_scale(double grad_norm, double max_grad_norm);

namespace cpu {
double sum_of_squares(ExecContext& ctx, std::span<const ConstTensorView> runs);
}
namespace cuda {
double sum_of_squares(ExecContext& ctx, std::span<const ConstTensorView> runs);
}

}  // namespace coppice
