#include "parallel/process_grid.hpp"

#include "core/build_config.hpp"
#include "core/cuda/runtime.hpp"
#include "parallel/nccl/nccl_communicator.hpp"
#include "parallel/staged_communicator.hpp"

namespace coppice {
namespace {

// NCCL hangs where two ranks of one communicator share a device. Every process has its own emulated
// one.
void check_devices(MpiSession& session) {
  if constexpr (build::kWithCuda && !build::kEmulatedDevice) {
    const int devices = cuda::device_count();
    if (session.local_size() <= devices) return;
    throw ConfigError({fmt::format(
        "parallel.communicator: {} ranks share {} CUDA devices on host {} (NCCL takes one rank a "
        "device). Start {} ranks there, or set STAGED (through the host's memory and MPI, which is "
        "slow).",
        session.local_size(), devices, session.host(), devices)});
  }
}

}  // namespace

GridCoordinates coordinates_of(int world_rank, const GridSizes& sizes) {
  return {.tp_rank = world_rank % sizes.tensor,
          .cp_rank = world_rank / sizes.tensor % sizes.context,
          .dp_rank = world_rank / (sizes.tensor * sizes.context)};
}

ProcessGrid::ProcessGrid()
    : tensor_(make_self_communicator()),
      context_(make_self_communicator()),
      data_(make_self_communicator()),
      replicas_(make_self_communicator()),
      world_(make_self_communicator()),
      shared_key_value_(make_self_communicator()),
      own_activity_(std::make_unique<Activity>()),
      activity_(own_activity_.get()) {}

ProcessGrid::ProcessGrid(MpiSession& session, const GridSizes& sizes, WatchdogConfig watchdog,
                         int key_value_sharers, SequenceParallel sequence_parallel,
                         GridDevice device)
    : sizes_(sizes),
      coordinates_(coordinates_of(session.rank() % sizes.ranks(), sizes)),
      sequence_parallel_(sequence_parallel),
      activity_(&session.activity()) {
  COPPICE_CHECK(session.size() % sizes.ranks() == 0, "a grid of {} x {} x {} for {} ranks",
                sizes.data, sizes.context, sizes.tensor, session.size());
  COPPICE_CHECK(key_value_sharers >= 1 && sizes.tensor % key_value_sharers == 0,
                "{} of {} tensor ranks share a key-value head", key_value_sharers, sizes.tensor);
  const auto [tp, cp, dp] = coordinates_;
  const bool on_cuda = build::kWithCuda && device.device.kind == DeviceKind::kCuda;
  const bool over_nccl = on_cuda && device.axes == GridDevice::Axes::kNccl && sizes.ranks() > 1;
  std::shared_ptr<NcclWatch> watch;
  if constexpr (build::kWithCuda) {
    if (over_nccl) {
      check_devices(session);
      watch = make_nccl_watch(session, watchdog);
    }
  }
  // An axis of one rank needs no MPI communicator, and sends nothing through it.
  const auto axis = [&](int size, int color, const char* name) {
    auto comm = session.split(color, name, watchdog);
    if (size == 1) return make_self_communicator();
    if constexpr (build::kWithCuda) {
      if (over_nccl) return make_nccl_communicator(std::move(comm), name, device.device, watch);
      if (on_cuda) return make_staged_communicator(std::move(comm));
    }
    return comm;
  };
  const int copy = session.rank() / sizes.ranks();
  tensor_ = axis(sizes.tensor, session.rank() / sizes.tensor, "tensor");
  context_ = axis(sizes.context, (copy * sizes.data + dp) * sizes.tensor + tp, "context");
  data_ = axis(sizes.data, (copy * sizes.context + cp) * sizes.tensor + tp, "data");
  replicas_ = axis(sizes.data * sizes.context, copy * sizes.tensor + tp, "data x context");
  world_ = axis(sizes.ranks(), copy, "world");
  // Tensor ranks are neighbours, so sharers are runs of ranks.
  shared_key_value_ =
      axis(key_value_sharers, session.rank() / key_value_sharers, "shared key-value head");
}

void ProcessGrid::overlap(bool on) {
  for (auto* axis : {&tensor_, &context_, &data_, &replicas_, &world_, &shared_key_value_})
    (*axis)->overlap(on);
}

void ProcessGrid::trace_to(Trace* trace) {
  // The metrics' names.
  tensor_->trace_to(trace, "tensor");
  context_->trace_to(trace, "context");
  data_->trace_to(trace, "data");
  replicas_->trace_to(trace, "replicas");
  world_->trace_to(trace, "world");
  shared_key_value_->trace_to(trace, "shared_key_value");
}

}  // namespace coppice
