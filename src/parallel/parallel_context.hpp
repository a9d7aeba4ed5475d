#pragma once
// What a layer knows of the process grid: one communicator per axis, and whether rows between the
// linears are sharded. Layers take it when they are made and shard their parameters by it.
#include "parallel/activity.hpp"
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
  /// Kept up to date by whoever drives the work, for messages about waits; may be absent.
  Activity* activity = nullptr;

  bool shards_sequence() const {
    return sequence_parallel == SequenceParallel::kYes && tensor.size() > 1;
  }
  /// What the number of a batch's rows must be a multiple of.
  std::int64_t row_multiple() const { return shards_sequence() ? tensor.size() : 1; }
  /// Of a batch's rows, those that norms and residuals of this rank see.
  std::int64_t sequence_rows(std::int64_t rows) const { return rows / row_multiple(); }
  /// Whether this rank speaks for what all tensor-parallel ranks hold.
  bool is_first_tensor_rank() const { return tensor.rank() == 0; }
};

}  // namespace coppice
