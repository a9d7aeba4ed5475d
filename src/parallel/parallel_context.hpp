#pragma once
// What a layer knows of the process grid: one communicator per axis. Layers take it when they are
// made and shard their parameters by it.
#include "parallel/communicator.hpp"

namespace coppice {

struct ParallelContext {
  Communicator& tensor;
  Communicator& context;
  Communicator& data;
};

}  // namespace coppice
