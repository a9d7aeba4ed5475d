#pragma once
// What one rank computes with: its device's stream, memory and scratch, and its place in the
// process grid. Commands make one and hand out references; nothing about it is global.
#include <algorithm>
#include <cstdio>

#include "core/build_config.hpp"
#include "core/exec_context.hpp"
#include "launch/job.hpp"
#include "launch/run_config.hpp"
#include "parallel/process_grid.hpp"

namespace coppice {

/// One rank. On CUDA the ranks of a host take its devices in turn.
///
/// Parallel  made by all ranks of the job together
/// Effects   rank 0 says where it computes, in a build that has a choice
/// Errors    DeviceError where the machine has no such device
class Session {
 public:
  /// `model` says how many tensor ranks share a key-value head. `trace`, where the run is traced,
  /// must outlive this.
  Session(Job& job, const RunConfig& config, const ModelConfig& model, Trace* trace = nullptr)
      : stream_(device_of(job.mpi(), config.device)),
        ctx_{stream_, memory_, scratch_, config.threads_per_rank, trace},
        grid_(job.mpi(), config.grid, job.watchdog(config.watchdog_seconds),
              std::max(1, config.grid.tensor / static_cast<int>(model.num_key_value_heads)),
              config.sequence_parallel, {stream_.device(), config.axes}) {
    grid_.overlap(config.overlap);
    if (config.overlap && job.size() > 1 && job.is_first() && !job.mpi().can_overlap())
      fmt::print(stderr,
                 "collectives do not run under compute, which is slower: this MPI offers no "
                 "MPI_THREAD_MULTIPLE\n");
    grid_.trace_to(trace);
    if (build::kWithCuda && job.is_first())
      fmt::print(stderr, "computing on {}\n", description_of(device()));
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ExecContext& ctx() { return ctx_; }
  const Device& device() const { return stream_.device(); }
  Memory& memory() { return memory_; }
  ProcessGrid& grid() { return grid_; }
  ParallelContext parallel() { return grid_.parallel(); }

 private:
  static Device device_of(const MpiSession& mpi, DeviceKind kind) {
    return {kind, mpi.local_rank() % std::max(1, device_count(kind))};
  }

  // In the order of what stands on what: memory of a device comes and goes on its stream.
  Stream stream_;
  Memory memory_{stream_};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
  ProcessGrid grid_;
};

}  // namespace coppice
