#pragma once
// What a reduction adds up, element by element: for the emulated NCCL, rank by rank.
#include <cstddef>
#include <cstdint>

#include "parallel/communicator.hpp"

namespace coppice::nccl {

/// Adds `count` values to as many sums, or takes the larger of both. No alignment is asked.
///
/// Dtypes    f32, f64, i32, i64
/// Errors    DeviceError for another
void accumulate(DType dtype, ReduceOp op, const std::byte* values, std::byte* sums,
                std::int64_t count);

}  // namespace coppice::nccl
