// The CUDA runtime's calls on a real device.
#include "core/cuda/runtime.hpp"

#include <cuda_runtime_api.h>
