#pragma once
// Collectives of device memory for ranks whose devices have no way to each other, several ranks on
// one GPU above all: through pinned memory of the host and a communicator of host memory. Slower
// than a device's own collectives by the two copies, and the host waits; for tests, small models
// and single machines. Which axes are staged is ProcessGrid's choice.
#include <memory>

#include "parallel/communicator.hpp"

namespace coppice {

/// Tensors of the host go straight to the host's communicator; tensors of a device are copied out
/// in the order of the call's stream, exchanged, and copied back in that order.
///
/// Memory    pinned: one block as large as the largest tensor that came, kept
/// Effects   the host waits until the stream has come to the call; what is enqueued on the stream
///           afterwards sees the result. A barrier waits for all of the stream's work
/// Repeats   bit for bit what the host's communicator does with the same values
class StagedCommunicator : public Communicator {
 public:
  explicit StagedCommunicator(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}
  ~StagedCommunicator() override;
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

 protected:
  /// What the host waits for.
  enum class Wait {
    kCopiedOut,   ///< the device's values have come, before the host sends them
    kCopiedBack,  ///< the device has fetched a result, before the host's memory is used again
  };
  /// Waits. Tests leave one out, to see that it would be noticed.
  virtual void wait(const Event& event, Wait what);

 private:
  void do_all_reduce(Stream& stream, TensorView data, ReduceOp op) override;
  void do_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                     std::span<const std::int64_t> rows) override;
  void do_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                         std::span<const std::int64_t> rows) override;
  void do_broadcast(Stream& stream, TensorView data, int root) override;
  void do_barrier(Stream& stream) override;

  TensorView place_for(ConstTensorView tensor);
  void copy_out(Stream& stream, ConstTensorView from, TensorView to);
  void copy_back(Stream& stream, ConstTensorView from, TensorView to);

  std::unique_ptr<Communicator> host_;
  std::byte* block_ = nullptr;
  std::int64_t block_bytes_ = 0;
  Event copied_back_;  // the last copy from the block to a device
};

/// In a build with a CUDA backend only.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host);

}  // namespace coppice
