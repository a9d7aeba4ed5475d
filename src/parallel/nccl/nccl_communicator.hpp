#pragma once
// Collectives of device memory over NCCL, along one axis: on a stream of their own, ordered with
// the caller's by events, so that the host waits for nothing. Tensors of the host go over MPI.
#include <memory>
#include <string>

#include "parallel/communicator.hpp"
#include "parallel/nccl/nccl_calls.hpp"
#include "parallel/nccl/nccl_watch.hpp"

namespace coppice {

/// Even shards are one all-gather or reduce-scatter; uneven ones a group of broadcasts or reduces,
/// one per rank that holds any (docs/decisions/0011-nccl.md).
///
/// Effects   what the caller's stream holds when a collective is called comes before it; what is
///           enqueued there afterwards sees its result. One that is started runs beside what is
///           enqueued until it is awaited. A barrier waits for the stream's work
/// Errors    CommError where NCCL fails or a collective does not end in time, at this collective or
///           at a later one, or where the host waits for the device
/// Repeats   bitwise on the same machines and grid; every rank has the same bits
class NcclCommunicator : public Communicator {
 public:
  /// Collective over the ranks of `host`, which all have a device of their own.
  NcclCommunicator(std::unique_ptr<Communicator> host, std::string axis, Device device,
                   std::shared_ptr<NcclWatch> watch);
  ~NcclCommunicator() override;
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

 protected:
  /// What must come one after the other on two streams.
  enum class Order {
    kAfterInputs,    ///< the collective, behind what the caller's stream wrote
    kBeforeResults,  ///< the caller's stream, behind the collective
  };
  /// Lets `later` wait. Tests leave one out, to see that it would be noticed.
  virtual void order(const Event& earlier, Stream& later, Order what);
  nccl::Connection& connection() { return *connection_; }

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

  void run(Stream& stream, Collective collective, ConstTensorView payload,
           std::span<const nccl::Call> group);

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<NcclWatch> watch_;
  Stream stream_;
  nccl::ConnectionPtr connection_;
  NcclWatch::Axis* axis_ = nullptr;
  int exceptions_at_start_;
};

/// In a build with a CUDA backend only.
std::shared_ptr<NcclWatch> make_nccl_watch(MpiSession& session, WatchdogConfig watchdog);
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     std::string axis, Device device,
                                                     std::shared_ptr<NcclWatch> watch);

}  // namespace coppice
