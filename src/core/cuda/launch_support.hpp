#pragma once
// The little that launching a kernel on a real device needs of the runtime, without its headers.
#include "core/stream.hpp"

namespace coppice::cuda {

/// The runtime's handle (a cudaStream_t) of a stream on a CUDA device, which becomes the calling
/// thread's current one: launches want it so.
void* native_stream(Stream& stream);
void* native_stream(StreamState& stream);

/// Throws DeviceError with the code's name where `code` (a cudaError_t) is not success.
void check_device(int code, const char* action);

}  // namespace coppice::cuda
