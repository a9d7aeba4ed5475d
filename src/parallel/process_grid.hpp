#pragma once
// Where a rank stands in the grid data x context x tensor, and its communicator along each axis.
#include <memory>
#include <string>

#include "parallel/communicator.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "parallel/parallel_context.hpp"

namespace coppice {

/// Number of ranks along each axis. Tensor ranks are neighbours, then context, then data.
struct GridSizes {
  int tensor = 1;
  int context = 1;
  int data = 1;
  int ranks() const { return tensor * context * data; }
  auto operator<=>(const GridSizes&) const = default;
};

struct GridCoordinates {
  int tp_rank = 0;
  int cp_rank = 0;
  int dp_rank = 0;
  friend bool operator==(const GridCoordinates&, const GridCoordinates&) = default;
};

/// Where the tensors of a grid's ranks are, and how they go over its axes.
struct GridDevice {
  Device device;
  enum class Axes {
    kNccl,    ///< from device to device: every rank has a device of its own
    kStaged,  ///< through the host and MPI: ranks may share a device. Only where asked for
  };
  Axes axes = Axes::kNccl;
};

GridCoordinates coordinates_of(int world_rank, const GridSizes& sizes);

/// Parallel  made by all ranks together
///           Where there are more ranks than a grid has, neighbours form further grids of the same
///           sizes, each on its own (`world()` is one grid)
/// Errors    ContractError when the number of ranks is not a multiple of the grid's, or the sharers
///           of a key-value head do not divide the tensor ranks; ConfigError where axes are NCCL's
///           and a host has fewer devices than ranks
class ProcessGrid {
 public:
  ProcessGrid(const ProcessGrid&) = delete;
  ProcessGrid& operator=(const ProcessGrid&) = delete;
  /// One rank, no MPI.
  ProcessGrid();
  /// `key_value_sharers`: how many tensor ranks hold the same key-value head. Tensors of the host
  /// may go over every axis, whatever `device` says.
  ProcessGrid(MpiSession& session, const GridSizes& sizes, WatchdogConfig watchdog,
              int key_value_sharers = 1, SequenceParallel sequence_parallel = SequenceParallel::kNo,
              GridDevice device = {});

  const GridSizes& sizes() const { return sizes_; }
  const GridCoordinates& coordinates() const { return coordinates_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& context() { return *context_; }
  Communicator& data() { return *data_; }
  /// All ranks that hold the same tensor shard: what a gradient is summed over, and what optimizer
  /// state is sharded over (ZeRO-1). Rank order: data, then context.
  Communicator& replicas() { return *replicas_; }
  Communicator& world() { return *world_; }
  /// The tensor ranks that hold the same key-value head as this one.
  Communicator& shared_key_value() { return *shared_key_value_; }
  /// Every collective of the grid becomes an event of `trace`, which must outlive this.
  void trace_to(Trace* trace);
  /// Whether collectives that are started run under compute (they do, unless told otherwise).
  void overlap(bool on);
  /// What this rank is doing, for messages about waits.
  Activity& activity() { return *activity_; }
  ParallelContext parallel() {
    return {*tensor_, *context_, *data_, sequence_parallel_, activity_};
  }

 private:
  GridSizes sizes_;
  GridCoordinates coordinates_;
  SequenceParallel sequence_parallel_ = SequenceParallel::kNo;
  std::unique_ptr<Communicator> tensor_, context_, data_, replicas_, world_, shared_key_value_;
  std::unique_ptr<Activity> own_activity_;
  Activity* activity_;
};

}  // namespace coppice
