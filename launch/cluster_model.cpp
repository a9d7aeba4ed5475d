// A step op by op, in the order of layers/ and model/policy_model.cpp. What an op moves is counted
// as if every operand went over the memory once; whatever that leaves out is in the rates.
#include "launch/cluster_model.hpp"

#include <algorithm>

#include "launch/cluster_links.hpp"

namespace coppice {
namespace {

double product(auto... factors) { return (1.0 * ... * static_cast<double>(factors)); }

/// Forward and backward of something.
struct Passes {
  double forward = 0, backward = 0;
  double sum() const { return forward + backward; }
};

/// What one rank holds of a layer.
struct Widths {
  explicit Widths(const StepShape& step) {
    const ModelConfig& c = step.model;
    const std::int64_t tensor = step.grid.tensor;
    hidden = c.hidden_size;
    heads = c.num_attention_heads / tensor;
    kv_heads = std::max<std::int64_t>(1, c.num_key_value_heads / tensor);
    head_dim = c.head_dim;
    q = heads * head_dim;
    kv = kv_heads * head_dim;
    intermediate = c.intermediate_size / tensor;
    vocabulary = (c.vocab_size + tensor - 1) / tensor;
    element = size_of(step.dtype);
    sum_element = size_of(accumulation_of(step.dtype));
  }
  std::int64_t hidden, heads, kv_heads, head_dim, q, kv, intermediate, vocabulary;
  std::int64_t element, sum_element;  // bytes
};

class StepModel {
 public:
  StepModel(const StepShape& step, const ClusterProfile& cluster)
      : step_(step), cluster_(cluster), of_(step), layers_(step.model.num_hidden_layers) {
    for (const GridAxis axis : {GridAxis::kTensor, GridAxis::kContext, GridAxis::kReplicas,
                                GridAxis::kSharedKeyValue, GridAxis::kWorld})
      axes_.push_back({.axis = axis});
  }

  StepPrediction predict() {
    for (const MicrobatchShape& microbatch : step_.microbatches) add(microbatch);
    add_update();
    result_.forward_seconds += compute_.forward;
    result_.backward_seconds += compute_.backward;
    const double seconds = result_.forward_seconds + result_.backward_seconds +
                           result_.reduce_seconds + result_.optimizer_seconds;
    // Ranks that are not followed here cannot make it faster than all of them at their peak.
    const double peak = cluster_.peak_flops * product(step_.grid.ranks());
    result_.step_seconds = std::max(seconds, step_.executed_flops / peak);
    if (result_.step_seconds > 0)
      result_.mfu = step_.executed_flops / (peak * result_.step_seconds);
    for (const AxisPrediction& axis : axes_)
      if (axis.bytes > 0) result_.axes.push_back(axis);
    return result_;
  }

 private:
  double capped(const RateBySize& rates, double size) const {
    return std::min(rates.at(size), cluster_.peak_flops);
  }
  double gemm(const RateBySize& rates, std::int64_t m, std::int64_t n, std::int64_t k) const {
    return gemm_seconds(cluster_, rates, m, n, k, step_.dtype);
  }
  /// One op over `elements` elements.
  double moved(double rate, double elements, std::int64_t element) const {
    return elements * static_cast<double>(element) / rate + cluster_.call_seconds;
  }

  // x W^T forward; dy W and dy^T x backward.
  Passes linear(std::int64_t rows, std::int64_t out, std::int64_t in) const {
    return {gemm(cluster_.gemm_forward, rows, out, in),
            gemm(cluster_.gemm_input_gradient, rows, in, out) +
                gemm(cluster_.gemm_weight_gradient, out, in, rows)};
  }

  // Of all layers. Under recomputation forward runs once more, but for what down gives.
  Passes linears(std::int64_t rows) const {
    const Passes qkv = linear(rows, of_.q + 2 * of_.kv, of_.hidden);
    const Passes output = linear(rows, of_.hidden, of_.q);
    const Passes gate_up = linear(rows, 2 * of_.intermediate, of_.hidden);
    const Passes down = linear(rows, of_.hidden, of_.intermediate);
    Passes sum;
    for (const Passes& one : {qkv, output, gate_up, down}) {
      sum.forward += layers() * one.forward;
      sum.backward += layers() * one.backward;
    }
    if (step_.recompute != Recompute::kNone) sum.backward += sum.forward - layers() * down.forward;
    return sum;
  }

  Passes attention(const MicrobatchShape& microbatch) const {
    const double keys =
        product(microbatch.visible_pairs) + cluster_.extra_keys * product(microbatch.range_rows);
    const double flops = 4 * layers() * product(of_.heads, of_.head_dim) * keys;
    const double ranges =
        layers() * cluster_.range_seconds * product(microbatch.ranges, of_.kv_heads);
    const double dim = product(of_.head_dim), calls = layers() * cluster_.call_seconds;
    Passes passes{flops / capped(cluster_.attention_forward, dim) + ranges / 3 + calls,
                  2.5 * flops / capped(cluster_.attention_backward, dim) + 2 * ranges / 3 + calls};
    if (step_.recompute == Recompute::kBlock) passes.backward += passes.forward;
    return passes;
  }

  Passes memory_ops(std::int64_t rows) const {
    const auto& rates = cluster_.memory;
    const auto e = of_.element;
    const double stream = product(sequence_rows(rows), of_.hidden);
    const double turned = product(rows, of_.q + of_.kv), inner = product(rows, of_.intermediate);
    const double norms = step_.model.qk_norm ? 1 : 0;
    // Norm of the input, RoPE, norm of the sum, SwiGLU; what recomputation makes again.
    const double again = moved(rates.rms_norm, 2 * stream + 2 * norms * turned, e) +
                         moved(rates.rope, 2 * turned, e) + moved(rates.rms_norm, 4 * stream, e) +
                         moved(rates.swiglu, 3 * inner, e);
    Passes passes;
    passes.forward = layers() * (again + moved(rates.rows, 3 * stream, e));
    passes.backward =
        layers() *
        (moved(rates.swiglu, 5 * inner, e) + 2 * moved(rates.rms_norm, 4 * stream, e) +
         moved(rates.rope, 2 * turned, e) + (norms > 0 ? moved(rates.rms_norm, 3 * turned, e) : 0));
    if (step_.recompute != Recompute::kNone) passes.backward += layers() * again;
    // The embedding's rows, and their gradients.
    passes.forward += moved(rates.rows, 2 * stream, e);
    passes.backward += moved(rates.rows, 3 * product(rows, of_.hidden), of_.sum_element);
    return passes;
  }

  // The fused head: of its three products one is the forward's, and so the metrics cut it.
  Passes head(std::int64_t edge_rows) const {
    if (edge_rows == 0) return {};
    const Passes products = linear(edge_rows, of_.vocabulary, of_.hidden);
    const double softmax =
        moved(cluster_.memory.logits, product(edge_rows, of_.vocabulary), of_.sum_element);
    const double all = products.sum() + softmax;
    return {all / 3, 2 * all / 3};
  }

  void add(const MicrobatchShape& microbatch) {
    const Passes linears = this->linears(microbatch.rows), attention = this->attention(microbatch);
    const Passes ops = memory_ops(microbatch.rows), head = this->head(microbatch.edge_rows);
    result_.compute.gemm += microbatch.count * linears.sum();
    result_.compute.attention += microbatch.count * attention.sum();
    result_.compute.memory_ops += microbatch.count * ops.sum();
    result_.compute.head += microbatch.count * head.sum();
    const Passes sum{linears.forward + attention.forward + ops.forward + head.forward,
                     linears.backward + attention.backward + ops.backward + head.backward};
    compute_.forward += microbatch.count * sum.forward;
    compute_.backward += microbatch.count * sum.backward;
    last_backward_ = sum.backward;
    add_tensor(microbatch);
    add_context(microbatch);
  }

  // Of the tensor axis's collectives the sums and gathers around the backward of the two linears
  // into a layer's halves run under its products (layers/column_parallel_linear.cpp).
  void add_tensor(const MicrobatchShape& microbatch) {
    const bool sharded = step_.sequence_parallel == SequenceParallel::kYes;
    const double under =
        layers() * (linear(microbatch.rows, of_.q + 2 * of_.kv, of_.hidden).backward +
                    linear(microbatch.rows, 2 * of_.intermediate, of_.hidden).backward);
    if (sharded) {
      add(GridAxis::kTensor, Collective::kAllGather, microbatch,
          {.forward = 2 * layers(), .hidden = 2 * layers(), .under = under / 2});
      add(GridAxis::kTensor, Collective::kReduceScatter, microbatch,
          {.forward = 2 * layers() + 1, .hidden = 2 * layers(), .under = under / 2});
      add(GridAxis::kTensor, Collective::kAllReduce, microbatch, {.forward = 1});
    } else {
      add(GridAxis::kTensor, Collective::kAllReduce, microbatch,
          {.forward = 2 * layers() + 1, .hidden = 2 * layers(), .under = under / 2});
      add(GridAxis::kTensor, Collective::kAllGather, microbatch, {.forward = 1});
    }
  }

  // Keys and values come while the queries are projected.
  void add_context(const MicrobatchShape& microbatch) {
    const double passes = step_.recompute == Recompute::kBlock ? 2 : 1;
    const double under =
        passes * layers() * gemm(cluster_.gemm_forward, microbatch.rows, of_.q, of_.hidden);
    add(GridAxis::kContext, Collective::kAllGather, microbatch,
        {.forward = layers(), .hidden = passes * layers(), .under = under});
    add(GridAxis::kContext, Collective::kReduceScatter, microbatch, {});
  }

  /// Of one kind of collective: how many calls are forward's, how many run under compute, and the
  /// seconds of that compute.
  struct Calls {
    double forward = 0, hidden = 0, under = 0;
  };
  void add(GridAxis axis, Collective collective, const MicrobatchShape& microbatch,
           const Calls& of) {
    const auto& [calls, bytes] = microbatch.traffic.at(axis, collective);
    if (calls == 0) return;
    const double seconds = spent(axis, collective, calls, bytes);
    const double all = static_cast<double>(calls);
    const double hidden =
        step_.overlap
            ? cluster_.layer_overlap * std::min(seconds * std::min(1.0, of.hidden / all), of.under)
            : 0;
    const double waited = seconds - hidden, forward = std::min(1.0, of.forward / all);
    note(axis, microbatch.count, bytes, seconds, waited);
    result_.forward_seconds += microbatch.count * waited * forward;
    result_.backward_seconds += microbatch.count * waited * (1 - forward);
  }

  double spent(GridAxis axis, Collective collective, std::int64_t calls, std::int64_t bytes) const {
    const AxisPlace place =
        place_of(axis, step_.grid, step_.model.num_key_value_heads, cluster_.ranks_per_node);
    return collective_seconds(cluster_, place, collective, calls, bytes);
  }
  void note(GridAxis axis, double count, std::int64_t bytes, double seconds, double waited) {
    AxisPrediction& entry = axes_[static_cast<std::size_t>(axis)];
    entry.bytes += std::llround(count * static_cast<double>(bytes));
    entry.seconds += count * seconds;
    entry.waited_seconds += count * waited;
  }

  // Gradients are summed under the last micro-batch's backward, values gathered under the update.
  void add_update() {
    const double optimizer = optimizer_seconds();
    result_.compute.optimizer = result_.optimizer_seconds = optimizer;
    for (const AxisPrediction& axis : axes_)
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
        const auto& [calls, bytes] = step_.update_traffic.at(axis.axis, collective);
        if (calls == 0) continue;
        const double seconds = spent(axis.axis, collective, calls, bytes);
        const double under = axis.axis != GridAxis::kReplicas       ? 0
                             : collective == Collective::kAllGather ? optimizer
                                                                    : last_backward_;
        const double hidden =
            step_.overlap ? cluster_.gradient_overlap * std::min(seconds, under) : 0;
        note(axis.axis, 1, bytes, seconds, seconds - hidden);
        result_.reduce_seconds += seconds - hidden;
      }
  }

  // AdamW and the norm of the gradients on the rank's share, and zeros where no product sets a
  // gradient: the embedding's.
  double optimizer_seconds() const {
    const double layer = product(of_.hidden, of_.q + 2 * of_.kv) + product(of_.hidden, of_.q) +
                         3 * product(of_.hidden, of_.intermediate) + 2 * product(of_.hidden);
    const double embedding = product(of_.vocabulary, of_.hidden);
    const double elements = layers() * layer +
                            embedding * (step_.model.tie_word_embeddings ? 1 : 2) +
                            product(of_.hidden);
    const double shares =
        step_.zero == Zero::kOptimizer ? product(step_.grid.context, step_.grid.data) : 1.0;
    const double rounded = of_.element == of_.sum_element ? 0 : product(of_.element);
    const auto& rates = cluster_.memory;
    return elements / shares * (7 * product(of_.sum_element) + rounded) / rates.adamw +
           elements / shares * product(of_.sum_element) / rates.grad_norm +
           embedding * product(of_.sum_element) / rates.rows;
  }

  std::int64_t sequence_rows(std::int64_t rows) const {
    return step_.sequence_parallel == SequenceParallel::kYes ? rows / step_.grid.tensor : rows;
  }
  double layers() const { return static_cast<double>(layers_); }

  const StepShape& step_;
  const ClusterProfile& cluster_;
  Widths of_;
  std::int64_t layers_;
  Passes compute_;
  double last_backward_ = 0;
  std::vector<AxisPrediction> axes_;
  StepPrediction result_;
};

}  // namespace

double gemm_seconds(const ClusterProfile& cluster, const RateBySize& rates, std::int64_t m,
                    std::int64_t n, std::int64_t k, DType dtype) {
  if (m == 0 || n == 0 || k == 0) return 0;
  const double flops = 2 * product(m, n, k);
  const double rate = std::min(rates.at(product(std::min({m, n, k}))), cluster.peak_flops);
  const double bytes = (product(m, k) + product(k, n) + product(m, n)) * product(size_of(dtype));
  return std::max(flops / rate, bytes / cluster.memory_bandwidth) + cluster.call_seconds;
}

StepPrediction predict_step(const StepShape& step, const ClusterProfile& cluster) {
  StepPrediction prediction = StepModel(step, cluster).predict();
  COPPICE_CHECK(prediction.mfu <= 1 + 1e-12, "an MFU of {} (no rank runs faster than its peak)",
                prediction.mfu);
  return prediction;
}

}  // namespace coppice
