#pragma once
// The one number that says how large a step's gradient is, and the factor that bounds it.
#include <span>

#include "core/exec_context.hpp"
#include "parallel/parameter.hpp"

namespace coppice {

/// L2 norm over the gradients of all trainable parameters, each counted once.
///
/// Dtypes    gradients f32 or f64; squares and sums in double
/// Effects   reads gradients only; NaN or infinity in any of them shows in the result
/// Errors    ContractError if a trainable parameter has no gradient
/// Repeats   bitwise, for any thread count: blocks of fixed size are summed in order
/// Oracle    tests/optim/grad_norm_test.cpp
double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters);

/// What gradients are multiplied by so that their norm does not exceed `max_grad_norm`:
/// max_grad_norm / (norm + 1e-6) where norm > max_grad_norm, else 1. 0 turns clipping off.
double clip_scale(double grad_norm, double max_grad_norm);

namespace cpu {
double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters);
}
namespace cuda {
double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters);
}

}  // namespace coppice
