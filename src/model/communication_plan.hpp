#pragma once
// What a training step sends over each axis of the process grid, known before any rank runs: the
// collectives that layers, model, gradient reduction and trainer issue, counted as communicators
// count them (payload handed in). Whoever adds a collective to a step adds it here.
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/transformer_block.hpp"
#include "layers/vocab_shard.hpp"
#include "model/model_config.hpp"
#include "model/packed_batch.hpp"
#include "parallel/gradient_reducer.hpp"
#include "parallel/process_grid.hpp"

namespace coppice {

/// Communicators of a ProcessGrid that a step uses.
enum class GridAxis { kTensor, kContext, kReplicas, kSharedKeyValue, kWorld };
inline constexpr std::size_t kGridAxisCount = 5;

/// "tensor", "context", ..., as in the metrics.
std::string_view name_of(GridAxis axis);

/// Calls and payload bytes by axis and collective.
class PlannedTraffic {
 public:
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
  };

  const Entry& at(GridAxis axis, Collective collective) const {
    return entries_[static_cast<std::size_t>(axis)][static_cast<std::size_t>(collective)];
  }
  std::int64_t bytes(GridAxis axis) const;
  std::int64_t bytes() const;

  /// `calls` collectives of `bytes` each.
  void count(GridAxis axis, Collective collective, std::int64_t calls, std::int64_t bytes);
  /// One after the other on one rank.
  void add(const PlannedTraffic& later);
  /// On another rank at the same time: bytes add up, of calls the most count.
  void add_rank(const PlannedTraffic& other);

 private:
  std::array<std::array<Entry, kCollectiveCount>, kGridAxisCount> entries_{};
};

/// What one rank sends. Axes of one rank send nothing and count nothing.
///
/// Memory    allocates one block of the model on a Memory of its own and never touches it
/// Oracle    tests/ranks/communication_plan_test.cpp, the communicators' counters
class CommunicationPlanner {
 public:
  CommunicationPlanner(ModelConfig config, DType dtype, Recompute recompute, Zero zero,
                       const GridSizes& sizes, SequenceParallel sequence_parallel);

  /// PolicyModel::forward_backward. It is not called for a micro-batch without rows on any rank.
  PlannedTraffic of_microbatch(const PackedBatch& batch, int tp_rank) const;
  /// Everything behind the last micro-batch of a step that is not skipped: `figure_bytes` of
  /// tokens' figures gathered (rl/token_figures.hpp), gradients completed, norm and decision
  /// agreed, values gathered. `replica`: the rank's place among the replicas.
  PlannedTraffic of_update(std::int64_t figure_bytes, int replica) const;

 private:
  // `copies` parameters of the same shape.
  struct Gradient {
    std::int64_t rows, row_width, copies;
    std::vector<std::pair<ReductionGroup, std::int64_t>> parts{};  // rows of each
  };

  void count_tensor(const PackedBatch& batch, PlannedTraffic& traffic) const;
  void count_head(const PackedBatch& batch, int tp_rank, PlannedTraffic& traffic) const;
  void count_context(const PackedBatch& batch, PlannedTraffic& traffic) const;
  void count_gradient(const Gradient& gradient, int replica, PlannedTraffic& traffic) const;
  std::vector<Gradient> gradients_of_model();

  ModelConfig config_;
  DType dtype_;
  Recompute recompute_;
  Zero zero_;
  GridSizes sizes_;
  int replicas_;
  std::int64_t key_value_sharers_;
  Memory memory_{Device{}};
  std::unique_ptr<Communicator> tensor_, context_, data_;  // of ranks that are not there
  ParallelContext parallel_;
  VocabShard vocab_;
  TransformerBlock block_;  // knows its parameters
  std::vector<Gradient> gradients_;
};

}  // namespace coppice
