#pragma once
// Moving elements between tensors, wherever they are, and setting them to zero: what may not be a
// memcpy, because a tensor may be a device's. Changing the element type is left to convert.hpp.
#include "core/stream.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// to = from.
///
/// Shapes    equal
/// Layout    rows (axis 0) may be apart on either side; each row is contiguous
/// Dtypes    equal, any
/// Effects   overwrites `to` in the stream's order. From the device to the host it blocks until that
///           is done; from the host to the device `from` may change as soon as it returns
/// Errors    ContractError if shapes or dtypes differ, or a device is not the host or the stream's
void copy(Stream& stream, ConstTensorView from, TensorView to);

/// All bits zero, which is 0 in every dtype. Rows may be apart.
///
/// Effects   in the stream's order
void set_zero(Stream& stream, TensorView tensor);

/// The same in the order of a memory's own stream: for who makes a tensor and fills it.
void copy(Memory& memory, ConstTensorView from, TensorView to);
void set_zero(Memory& memory, TensorView tensor);

}  // namespace coppice
