#pragma once
// Collectives of host memory over MPI. Private to parallel/mpi: others see Communicator.
#include <mpi.h>

#include <string>

#include "parallel/communicator.hpp"
#include "parallel/mpi/collective_thread.hpp"
#include "parallel/mpi/heartbeat.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "parallel/mpi/pairwise_reduction.hpp"

namespace coppice {

/// Every collective is started without blocking and then polled, yielding the processor, so that
/// several ranks share a core and a peer that never comes is noticed.
class MpiCommunicator final : public Communicator {
 public:
  /// Takes `comm` over and frees it.
  MpiCommunicator(MPI_Comm comm, std::string axis, WatchdogConfig watchdog,
                  const Activity& activity, Heartbeat& heartbeat, bool has_threads);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  void do_all_reduce(Stream& stream, TensorView data, ReduceOp op) override;
  void do_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                     std::span<const std::int64_t> rows) override;
  void do_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                         std::span<const std::int64_t> rows) override;
  void do_broadcast(Stream& stream, TensorView data, int root) override;
  void do_barrier(Stream& stream) override;

  std::unique_ptr<Background> start(Stream& stream, CollectiveCall collective,
                                    const BackgroundFacts& facts) override;
  class UnderCompute;

  void take_turn(Collective collective, std::int64_t bytes);
  void wait(const std::function<bool()>& is_done, Collective collective, std::int64_t bytes);
  void finish(std::span<MPI_Request> requests, Collective collective, std::int64_t bytes);
  void reduce_pieces(ConstTensorView whole, TensorView result, ReduceOp op,
                     std::span<const std::int64_t> begins, Collective collective);
  void gather_pieces(ConstTensorView shard, TensorView whole, std::span<const std::int64_t> rows,
                     Collective collective);

  MPI_Comm comm_;
  std::string axis_;
  WatchdogConfig watchdog_;
  const Activity& activity_;
  Heartbeat& heartbeat_;
  PairwiseReduction pairwise_;
  bool has_threads_;  // MPI may be called by several threads at once
  int rank_ = 0;
  int size_ = 1;
  CollectiveThread thread_;  // last: it ends before what its jobs use
};

/// Throws CommError with MPI's own words when `code` is not success.
void check_mpi(int code, const char* call);

}  // namespace coppice
