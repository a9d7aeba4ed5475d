#include "rl/step_agreement.hpp"

namespace coppice {
namespace {

template <class T>
void reduce(ExecContext& ctx, Communicator& comm, std::vector<T>& values, ReduceOp op) {
  comm.all_reduce(ctx.stream, host_view(values.data(), {std::ssize(values)}), op);
}

// Calls visit(figure) for every figure of which the largest counts.
template <class Visit>
void for_each_maximum(StepMetrics& m, Visit&& visit) {
  for (double* seconds : {&m.step_seconds, &m.seconds.plan, &m.seconds.forward, &m.seconds.backward,
                          &m.seconds.optimizer})
    visit(*seconds);
  for (auto* seconds : {&m.seconds.reduce, &m.seconds.checkpoint, &m.seconds.old_logprobs})
    if (*seconds) visit(**seconds);
  visit(m.peak_memory_bytes);
  visit(m.peak_resident_bytes);
}

AxisTraffic traffic_of(const Communicator& comm) {
  AxisTraffic sum;
  for (std::size_t kind = 0; kind < kCollectiveCount; ++kind) {
    const CollectiveCounter& counter = comm.counter(static_cast<Collective>(kind));
    sum.calls += counter.calls;
    sum.bytes += counter.bytes;
    sum.seconds += counter.seconds;
  }
  return sum;
}

}  // namespace

bool on_any_rank(ExecContext& ctx, Communicator& world, bool here) {
  std::vector<std::int32_t> flag{here};
  reduce(ctx, world, flag, ReduceOp::kMax);
  return flag[0] != 0;
}

void take_maxima(ExecContext& ctx, Communicator& world, StepMetrics& metrics) {
  if (world.size() == 1) return;
  // Bytes are exact in a double up to 2^53.
  std::vector<double> figures;
  for_each_maximum(metrics, [&](auto& figure) { figures.push_back(static_cast<double>(figure)); });
  reduce(ctx, world, figures, ReduceOp::kMax);
  auto next = figures.begin();
  for_each_maximum(metrics,
                   [&]<class Figure>(Figure& figure) { figure = static_cast<Figure>(*next++); });
}

TrafficMeter::TrafficMeter(ProcessGrid& grid) : grid_(grid) {
  const auto watch = [&](const char* name, Communicator& comm) {
    if (comm.size() > 1) axes_.push_back({name, &comm, {}});
  };
  watch("tensor", grid.tensor());
  watch("context", grid.context());
  watch("data", grid.data());
  watch("replicas", grid.replicas());
  watch("shared_key_value", grid.shared_key_value());
  watch("world", grid.world());
  restart();
}

void TrafficMeter::restart() {
  for (Axis& axis : axes_) axis.start = traffic_of(*axis.comm);
}

void TrafficMeter::put(ExecContext& ctx, StepMetrics& metrics) {
  if (axes_.empty()) return;
  std::vector<std::int64_t> bytes, calls;
  std::vector<double> seconds;
  for (const Axis& axis : axes_) {
    const AxisTraffic now = traffic_of(*axis.comm);
    calls.push_back(now.calls - axis.start.calls);
    bytes.push_back(now.bytes - axis.start.bytes);
    seconds.push_back(now.seconds - axis.start.seconds);
  }
  reduce(ctx, grid_.world(), calls, ReduceOp::kMax);
  reduce(ctx, grid_.world(), bytes, ReduceOp::kSum);
  reduce(ctx, grid_.world(), seconds, ReduceOp::kMax);
  metrics.communication.clear();
  metrics.communication_bytes = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    metrics.communication.push_back({axes_[i].name, calls[i], bytes[i], seconds[i]});
    *metrics.communication_bytes += bytes[i];
  }
}

}  // namespace coppice
