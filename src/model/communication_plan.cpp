#include "model/communication_plan.hpp"

#include <algorithm>

#include "model/memory_plan.hpp"

namespace coppice {

std::string_view name_of(GridAxis axis) {
  switch (axis) {
    case GridAxis::kTensor:
      return "tensor";
    case GridAxis::kContext:
      return "context";
    case GridAxis::kReplicas:
      return "replicas";
    case GridAxis::kSharedKeyValue:
      return "shared_key_value";
    case GridAxis::kWorld:
      return "world";
  }
  return "unknown";
}

std::int64_t PlannedTraffic::bytes(GridAxis axis) const {
  std::int64_t sum = 0;
  for (const Entry& entry : entries_[static_cast<std::size_t>(axis)]) sum += entry.bytes;
  return sum;
}

std::int64_t PlannedTraffic::bytes() const {
  std::int64_t sum = 0;
  for (std::size_t axis = 0; axis < kGridAxisCount; ++axis)
    sum += bytes(static_cast<GridAxis>(axis));
  return sum;
}

void PlannedTraffic::count(GridAxis axis, Collective collective, std::int64_t calls,
                           std::int64_t bytes) {
  Entry& entry = entries_[static_cast<std::size_t>(axis)][static_cast<std::size_t>(collective)];
  entry.calls += calls;
  entry.bytes += calls * bytes;
}

void PlannedTraffic::add(const PlannedTraffic& later) {
  for (std::size_t axis = 0; axis < kGridAxisCount; ++axis)
    for (std::size_t kind = 0; kind < kCollectiveCount; ++kind) {
      entries_[axis][kind].calls += later.entries_[axis][kind].calls;
      entries_[axis][kind].bytes += later.entries_[axis][kind].bytes;
    }
}

void PlannedTraffic::add_rank(const PlannedTraffic& other) {
  for (std::size_t axis = 0; axis < kGridAxisCount; ++axis)
    for (std::size_t kind = 0; kind < kCollectiveCount; ++kind) {
      Entry& entry = entries_[axis][kind];
      entry.calls = std::max(entry.calls, other.entries_[axis][kind].calls);
      entry.bytes += other.entries_[axis][kind].bytes;
    }
}

CommunicationPlanner::CommunicationPlanner(ModelConfig config, DType dtype, Recompute recompute,
                                           Zero zero, const GridSizes& sizes,
                                           SequenceParallel sequence_parallel)
    : config_(std::move(config)),
      dtype_(dtype),
      recompute_(recompute),
      zero_(zero),
      sizes_(sizes),
      replicas_(sizes.data * sizes.context),
      key_value_sharers_(std::max<std::int64_t>(1, sizes.tensor / config_.num_key_value_heads)),
      tensor_(make_absent_communicator(0, sizes.tensor)),
      context_(make_absent_communicator(0, sizes.context)),
      data_(make_absent_communicator(0, sizes.data)),
      parallel_{*tensor_, *context_, *data_, sequence_parallel},
      vocab_(vocab_shard(parallel_, config_.vocab_size)),
      block_(parallel_, {memory_, dtype, WithGradients::kNo}, block_config(config_, 0)),
      gradients_(gradients_of_model()) {}

PlannedTraffic CommunicationPlanner::of_microbatch(const PackedBatch& batch, int tp_rank) const {
  PlannedTraffic traffic;
  if (sizes_.tensor > 1) {
    count_tensor(batch, traffic);
    count_head(batch, tp_rank, traffic);
  }
  if (batch.shared.any()) count_context(batch, traffic);
  return traffic;
}

// Embedding, and in each layer the two linears into the block's halves and the two out of them.
void CommunicationPlanner::count_tensor(const PackedBatch& batch, PlannedTraffic& traffic) const {
  const auto layers = config_.num_hidden_layers;
  const auto again = recompute_ == Recompute::kNone ? 0 : layers;
  const auto whole = batch.rows() * config_.hidden_size * size_of(dtype_);
  const auto sums = batch.rows() * config_.hidden_size * size_of(accumulation_of(dtype_));
  if (!parallel_.shards_sequence()) {
    // Backward sums the gradients of both inputs. The feed-forward network's output is not made
    // again. The embedding's rows come as they are stored.
    const auto forward = 2 * layers, backward = 2 * layers;
    traffic.count(GridAxis::kTensor, Collective::kAllReduce, 1, whole);
    return traffic.count(GridAxis::kTensor, Collective::kAllReduce, forward + again + backward,
                         sums);
  }
  const auto shard = whole / sizes_.tensor;
  // Inputs are gathered again for their weights' gradients: they are kept as shards.
  const auto gathers = 2 * layers + 2 * again + (4 * layers + 1);
  const auto scatters = 2 * layers + again + 2 * layers;
  traffic.count(GridAxis::kTensor, Collective::kAllGather, gathers, shard);
  traffic.count(GridAxis::kTensor, Collective::kReduceScatter, 1, whole);
  traffic.count(GridAxis::kTensor, Collective::kReduceScatter, scatters, sums);
}

// Normed head rows to all tensor ranks and their gradients back; in between, for each chunk of
// rows, statistics and target logits.
void CommunicationPlanner::count_head(const PackedBatch& batch, int tp_rank,
                                      PlannedTraffic& traffic) const {
  const HeadEdges edges(batch.edges);
  const auto rows = edges.row_count(), row = config_.hidden_size * size_of(dtype_);
  const auto sums = rows * config_.hidden_size * size_of(accumulation_of(dtype_));
  if (parallel_.shards_sequence()) {
    const auto own =
        head_rows_of_ranks(parallel_, batch.rows(), edges)[static_cast<std::size_t>(tp_rank)];
    traffic.count(GridAxis::kTensor, Collective::kAllGather, 1, own * row);
    traffic.count(GridAxis::kTensor, Collective::kReduceScatter, 1, sums);
  } else {
    traffic.count(GridAxis::kTensor, Collective::kAllReduce, 1, sums);
  }
  const auto chunk = head_chunk_rows(dtype_, vocab_, rows);
  const auto number = size_of(DType::kF64);
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const auto count = std::min(chunk, rows - begin);
    const auto chunk_edges = edges.edge_begin[static_cast<std::size_t>(begin + count)] -
                             edges.edge_begin[static_cast<std::size_t>(begin)];
    traffic.count(GridAxis::kTensor, Collective::kAllGather, 1, 3 * count * number);
    traffic.count(GridAxis::kTensor, Collective::kAllReduce, 1, chunk_edges * number);
  }
}

// Keys and values of this rank's shared rows once per layer, and again where the block runs again;
// the gradients of all gathered rows once.
void CommunicationPlanner::count_context(const PackedBatch& batch, PlannedTraffic& traffic) const {
  const auto layers = config_.num_hidden_layers;
  const auto heads = std::max<std::int64_t>(1, config_.num_key_value_heads / sizes_.tensor);
  const auto width = 2 * heads * config_.head_dim;
  const auto passes = recompute_ == Recompute::kBlock ? 2 : 1;
  traffic.count(GridAxis::kContext, Collective::kAllGather, passes * layers,
                std::ssize(batch.shared.rows) * width * size_of(dtype_));
  traffic.count(GridAxis::kContext, Collective::kReduceScatter, layers,
                batch.shared.total() * width * size_of(accumulation_of(dtype_)));
}

PlannedTraffic CommunicationPlanner::of_update(std::int64_t figure_bytes, int replica) const {
  PlannedTraffic traffic;
  for (const Gradient& gradient : gradients_) count_gradient(gradient, replica, traffic);
  if (replicas_ > 1) traffic.count(GridAxis::kReplicas, Collective::kAllReduce, 1, figure_bytes);
  if (sizes_.ranks() > 1) {
    traffic.count(GridAxis::kWorld, Collective::kAllReduce, 1, size_of(DType::kF64));  // norm
    traffic.count(GridAxis::kWorld, Collective::kAllReduce, 1, size_of(DType::kI32));  // decision
  }
  return traffic;
}

std::vector<CommunicationPlanner::Gradient> CommunicationPlanner::gradients_of_model() {
  std::vector<Gradient> gradients;
  const auto norm_reduction =
      parallel_.shards_sequence() ? ReductionGroup::kTensor : ReductionGroup::kNone;
  gradients.push_back({.rows = vocab_.padded_rows,
                       .row_width = config_.hidden_size,
                       .copies = config_.tie_word_embeddings ? 1 : 2});
  gradients.push_back({.rows = config_.hidden_size,
                       .row_width = 1,
                       .copies = 1,
                       .parts = {{norm_reduction, config_.hidden_size}}});
  std::vector<Parameter*> parameters;
  block_.collect(parameters);
  for (const Parameter* parameter : parameters) {
    Gradient gradient{.rows = parameter->rows(),
                      .row_width = parameter->value.numel() / parameter->rows(),
                      .copies = config_.num_hidden_layers};
    for (const ParameterPart& part : parameter->parts)
      gradient.parts.push_back({part.reduction, part.shard.local_shape[0]});
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

// As GradientReducer does it: gradients in the type of sums, values in theirs.
void CommunicationPlanner::count_gradient(const Gradient& gradient, int replica,
                                          PlannedTraffic& traffic) const {
  const auto count = [&](GridAxis axis, Collective collective, std::int64_t rows) {
    const DType dtype = collective == Collective::kAllGather ? dtype_ : accumulation_of(dtype_);
    traffic.count(axis, collective, gradient.copies, rows * gradient.row_width * size_of(dtype));
  };
  for (const auto& [reduction, rows] : gradient.parts) {
    if (rows == 0) continue;
    if (reduction == ReductionGroup::kTensor && sizes_.tensor > 1)
      count(GridAxis::kTensor, Collective::kAllReduce, rows);
    if (reduction == ReductionGroup::kSharedKeyValueHead && key_value_sharers_ > 1)
      count(GridAxis::kSharedKeyValue, Collective::kAllReduce, rows);
  }
  if (replicas_ == 1) return;
  if (zero_ == Zero::kNone)
    return count(GridAxis::kReplicas, Collective::kAllReduce, gradient.rows);
  count(GridAxis::kReplicas, Collective::kReduceScatter, gradient.rows);
  count(GridAxis::kReplicas, Collective::kAllGather,
        RowShare{replica, replicas_}.of(gradient.rows).count());
}

}  // namespace coppice
