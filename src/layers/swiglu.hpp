#pragma once
// The gated activation of the feed-forward network, on the fused output of its first linear.
#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// hidden = silu(gate) up, with silu(g) = g / (1 + exp(-g)).
///
/// Shapes    gate_up [T, 2F]: gate in columns [0, F), up in [F, 2F)   hidden [T, F]
/// Layout    rows may be apart
/// Dtypes    all f32 or all f64; on CUDA bf16, with f32 between
/// Effects   overwrites hidden
/// Errors    ContractError if shapes, dtypes or devices disagree
/// Repeats   bitwise, for any thread count; a row depends on no other row
/// Source    Shazeer, arXiv:2002.05202
/// Oracle    tests/layers/swiglu_test.cpp
void swiglu_forward(ExecContext& ctx, ConstTensorView gate_up, TensorView hidden);

/// With s = sigmoid(gate): d_gate = d_hidden up s (1 + gate (1 - s)), d_up = d_hidden gate s.
///
/// Effects   overwrites d_gate_up, which may be gate_up itself
void swiglu_backward(ExecContext& ctx, ConstTensorView gate_up, ConstTensorView d_hidden,
                     TensorView d_gate_up);

namespace cpu {
void swiglu_forward(ExecContext& ctx, ConstTensorView gate_up, TensorView hidden);
void swiglu_backward(ExecContext& ctx, ConstTensorView gate_up, ConstTensorView d_hidden,
                     TensorView d_gate_up);
}  // namespace cpu
namespace cuda {
void swiglu_forward(ExecContext& ctx, ConstTensorView gate_up, TensorView hidden);
void swiglu_backward(ExecContext& ctx, ConstTensorView gate_up, ConstTensorView d_hidden,
                     TensorView d_gate_up);
}  // namespace cuda

}  // namespace coppice
