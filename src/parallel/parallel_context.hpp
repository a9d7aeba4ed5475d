#pragma once
// What a layer knows of the process grid: one communicator per axis, and whether rows between the
// linears are sharded. Layers take it when they are made and shard their parameters by it.
#include "parallel/communicator.hpp"

namespace coppice {

/// Whether norms and residuals see all rows of the rank's batch, or each tensor-parallel rank an
/// equal share of them.
enum class SequenceParallel { kNo, kYes };

struct ParallelContext {
  Communicator& tensor;
  Communicator& context;
  Communicator& data;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
};

}  // namespace coppice
