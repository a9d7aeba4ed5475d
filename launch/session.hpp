#pragma once
// What one rank computes with: its device's stream, memory and scratch, and its place in the
// process grid. Commands make one and hand out references; nothing about it is global.
#include <algorithm>

#include "core/exec_context.hpp"
#include "launch/job.hpp"
#include "launch/run_config.hpp"
#include "parallel/process_grid.hpp"

namespace coppice {

/// One rank on the CPU.
///
/// Parallel  made by all ranks of the job together
class Session {
 public:
  /// `model` says how many tensor ranks share a key-value head. `trace`, where the run is traced,
  /// must outlive this.
  Session(Job& job, const RunConfig& config, const ModelConfig& model, Trace* trace = nullptr)
      : ctx_{stream_, memory_, scratch_, config.threads_per_rank, trace},
        grid_(job.mpi(), config.grid, job.watchdog(config.watchdog_seconds),
              std::max(1, config.grid.tensor / static_cast<int>(model.num_key_value_heads)),
              config.sequence_parallel) {
    grid_.overlap(config.overlap);
    grid_.trace_to(trace);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ExecContext& ctx() { return ctx_; }
  Memory& memory() { return memory_; }
  ProcessGrid& grid() { return grid_; }
  ParallelContext parallel() { return grid_.parallel(); }

 private:
  Memory memory_{Device{}};
  Stream stream_{Device{}};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
  ProcessGrid grid_;
};

}  // namespace coppice
