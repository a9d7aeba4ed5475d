#pragma once
// The collectives the program needs, over one axis of the process grid. One process, host ranks and
// device ranks are implementations of this interface, so every layer is written once. Contracts are
// checked and calls counted here; an implementation only moves bytes.
#include <array>
#include <functional>
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
/// Units     bytes: the payload this rank sent, i.e. the tensor it handed in; seconds of waiting,
///           where a collective ran under compute only what was left to wait for
struct CollectiveCounter {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double seconds = 0.0;
};

/// A collective that runs under compute, as an implementation holds it.
class Background {
 public:
  /// Given up where it was not finished, which happens only while an error is on its way.
  virtual ~Background() = default;
  /// What is enqueued on `stream` from here on sees the result.
  virtual void finish(Stream& stream) = 0;
  /// Whether the host knows when it ran; then ran() says so once it is finished.
  virtual bool is_timed() const { return false; }
  virtual TraceSpan ran() const { return {}; }
};

class Communicator;

/// A collective that has been started. Until finish() nobody writes what it reads, or touches what
/// it writes; every rank starts the collectives of an axis in the same order, blocking ones among
/// them.
class Pending {
 public:
  /// Nothing to wait for.
  Pending() = default;
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) noexcept = default;

  /// What is enqueued on `stream` from here on sees the result. A second call does nothing.
  ///
  /// Errors    those of the blocking collective
  void finish(Stream& stream);

 private:
  friend class Communicator;
  Communicator* comm_ = nullptr;
  Collective collective_ = Collective::kBarrier;
  std::int64_t bytes_ = 0;
  std::int32_t trace_parent_ = TraceEvent::kNone;
  std::unique_ptr<Background> background_;  // none: done
};

/// Shapes    tensors are cut by rows (axis 0); `rows` says how many rows each rank holds
/// Layout    contiguous
/// Dtypes    any for gathers and broadcasts; f32, f64, i32, i64 for reductions
/// Effects   every collective is enqueued on `stream`; all ranks call it in the same order
/// Errors    ContractError for tensors that do not fit; CommError when a peer or MPI fails
/// Repeats   bitwise; the result of a reduction has the same bits on every rank
class Communicator {
 public:
  /// One collective, on the stream it is handed.
  using CollectiveCall = std::function<void(Stream&)>;
  /// What a message about one under compute says of it.
  struct BackgroundFacts {
    Collective collective;
    std::int64_t bytes;
  };

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

  /// The same under compute: they may return before they are done, and are awaited by
  /// Pending::finish. Bits, bytes and calls are those of the blocking ones. Where overlap is off,
  /// or an implementation has no way to do it, they block.
  [[nodiscard]] Pending start_all_reduce(Stream& stream, TensorView data, ReduceOp op);
  [[nodiscard]] Pending start_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                                         std::span<const std::int64_t> rows);
  [[nodiscard]] Pending start_reduce_scatter(Stream& stream, ConstTensorView whole,
                                             TensorView shard, std::span<const std::int64_t> rows);
  void overlap(bool on) { overlaps_ = on; }

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

  /// Makes `collective`, which is one of those above on a stream of the implementation's choice,
  /// run under compute behind what `stream` holds now. Null: it has run.
  virtual std::unique_ptr<Background> start(Stream& stream, CollectiveCall collective,
                                            const BackgroundFacts& facts);

  friend class Pending;
  Pending started(Stream& stream, Collective collective, std::int64_t bytes, CollectiveCall call);
  void finish(Stream& stream, const Pending& pending);
  void check_rows(const char* what, ConstTensorView shard, ConstTensorView whole,
                  std::span<const std::int64_t> rows) const;
  template <class Call>
  void counted(Collective collective, std::int64_t bytes, Call&& call);

  std::array<CollectiveCounter, kCollectiveCount> counters_{};
  bool overlaps_ = true;
  Trace* trace_ = nullptr;
  const char* trace_axis_ = nullptr;
};

/// The axis of one rank: sums are what they were, gathers are copies.
std::unique_ptr<Communicator> make_self_communicator();

/// A place on an axis whose other ranks are not there, for plans made without them: it only says
/// where it is, and every collective is a ContractError.
std::unique_ptr<Communicator> make_absent_communicator(int rank, int size);

}  // namespace coppice
