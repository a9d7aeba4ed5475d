#pragma once
// The collectives the program needs, over one axis of the process grid. One process, host ranks and
// device ranks are implementations of this interface, so every layer is written once. Contracts are
// checked and calls counted here; an implementation only moves bytes.
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/stream.hpp"
#include "core/tensor.hpp"
#include "core/trace.hpp"

namespace coppice {

enum class ReduceOp { kSum, kMax };

enum class Collective { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kBarrier };
inline constexpr std::size_t kCollectiveCount = 5;

/// "all_reduce", "all_gather", ...
std::string_view name_of(Collective collective);

/// What one kind of collective has cost this rank.
///
/// Units     bytes: the payload this rank sent, i.e. the tensor it handed in; seconds of waiting
struct CollectiveCounter {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double seconds = 0.0;
};

/// Shapes    tensors are cut by rows (axis 0); `rows` says how many rows each rank holds
/// Layout    contiguous
/// Dtypes    any for gathers and broadcasts; f32, f64, i32, i64 for reductions
/// Effects   every collective is enqueued on `stream`; all ranks call it in the same order
/// Errors    ContractError for tensors that do not fit; CommError when a peer or MPI fails
/// Repeats   bitwise; the result of a reduction has the same bits on every rank
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data becomes the sum (maximum) over ranks.
  void all_reduce(Stream& stream, TensorView data, ReduceOp op);
  /// whole: the shards of all ranks, stacked in rank order. `shard` may be its own place in it.
  void all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                  std::span<const std::int64_t> rows);
  /// shard: this rank's rows of the sum of `whole` over ranks; it may be its own place in `whole`,
  /// which is const for all other rows.
  void reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                      std::span<const std::int64_t> rows);
  /// The same with equal shards.
  void all_gather(Stream& stream, ConstTensorView shard, TensorView whole);
  void reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard);
  /// data becomes what rank `root` holds.
  void broadcast(Stream& stream, TensorView data, int root);
  void barrier(Stream& stream);

  /// From here on every collective becomes an event of `trace`, which must outlive this; null ends
  /// it. `axis` is the literal it is known by there. One rank sends nothing, and has no events.
  void trace_to(Trace* trace, const char* axis) {
    trace_ = trace;
    trace_axis_ = axis;
  }

  const CollectiveCounter& counter(Collective collective) const {
    return counters_[static_cast<std::size_t>(collective)];
  }

 private:
  virtual void do_all_reduce(Stream& stream, TensorView data, ReduceOp op) = 0;
  virtual void do_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                             std::span<const std::int64_t> rows) = 0;
  virtual void do_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                                 std::span<const std::int64_t> rows) = 0;
  virtual void do_broadcast(Stream& stream, TensorView data, int root) = 0;
  virtual void do_barrier(Stream& stream) = 0;

  void check_rows(const char* what, ConstTensorView shard, ConstTensorView whole,
                  std::span<const std::int64_t> rows) const;
  template <class Call>
  void counted(Collective collective, std::int64_t bytes, Call&& call);

  std::array<CollectiveCounter, kCollectiveCount> counters_{};
  Trace* trace_ = nullptr;
  const char* trace_axis_ = nullptr;
};

/// The axis of one rank: sums are what they were, gathers are copies.
std::unique_ptr<Communicator> make_self_communicator();

/// A place on an axis whose other ranks are not there, for plans made without them: it only says
/// where it is, and every collective is a ContractError.
std::unique_ptr<Communicator> make_absent_communicator(int rank, int size);

}  // namespace coppice
