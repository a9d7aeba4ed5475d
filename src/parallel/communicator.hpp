#pragma once
// The collectives the program needs, over one axis of the process grid. Ranks of one process, host
// ranks and device ranks are implementations of this interface, so every layer is written once.
#include <memory>

#include "core/stream.hpp"
#include "core/tensor.hpp"

namespace coppice {

enum class ReduceOp { kSum, kMax };

/// Effects   every collective is enqueued on `stream`; all ranks call it in the same order
/// Errors    CommError when a peer or the transport fails
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data becomes the sum (maximum) over ranks.
  virtual void all_reduce(Stream& stream, TensorView data, ReduceOp op) = 0;
  /// whole: the shards of all ranks, stacked by rows in rank order; every shard has the same shape.
  virtual void all_gather(Stream& stream, ConstTensorView shard, TensorView whole) = 0;
  /// shard: this rank's rows of the sum of `whole` over ranks.
  virtual void reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard) = 0;
  virtual void broadcast(Stream& stream, TensorView data, int root) = 0;
  virtual void barrier() = 0;
};

/// The axis of one rank: sums are what they were, gathers are copies.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace coppice
