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
};

struct GridCoordinates {
  int tp_rank = 0;
  int cp_rank = 0;
  int dp_rank = 0;
  friend bool operator==(const GridCoordinates&, const GridCoordinates&) = default;
};

GridCoordinates coordinates_of(int world_rank, const GridSizes& sizes);

/// Parallel  made by all ranks together
/// Errors    ContractError when sizes do not multiply to the number of ranks
class ProcessGrid {
 public:
  /// One rank, no MPI.
  ProcessGrid();
  ProcessGrid(MpiSession& session, const GridSizes& sizes, WatchdogConfig watchdog);

  const GridSizes& sizes() const { return sizes_; }
  const GridCoordinates& coordinates() const { return coordinates_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& context() { return *context_; }
  Communicator& data() { return *data_; }
  /// All ranks that hold the same tensor shard: what a gradient is summed over, and what optimizer
  /// state is sharded over (ZeRO-1). Rank order: data, then context.
  Communicator& replicas() { return *replicas_; }
  Communicator& world() { return *world_; }
  ParallelContext parallel() { return {*tensor_, *context_, *data_}; }

 private:
  GridSizes sizes_;
  GridCoordinates coordinates_;
  std::unique_ptr<Communicator> tensor_, context_, data_, replicas_, world_;
};

}  // namespace coppice
