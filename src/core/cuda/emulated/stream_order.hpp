#pragma once
// Which work of the device's streams comes before which: by the order of a stream, by events and by
// what the host waited for, whatever order the scheduler happens to draw. It is asked where memory
// is used on behalf of other processes: a collective claims what it reads and writes, and work that
// nothing orders with it may not touch that. Other races between streams are the scheduler's to
// provoke.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace coppice::emulated {

enum class Use { kRead, kWrite };

/// What a collective uses.
struct Claims {
  struct Range {
    const void* begin;
    std::int64_t bytes;
    Use use;
    std::string what;  // how an error calls it: "the input of ..."
  };
  std::vector<Range> ranges;
  /// Once true, the collective was given up and uses nothing any more.
  std::shared_ptr<const std::atomic<bool>> given_up;
};

class StreamOrder {
 public:
  /// By stream: how many pieces of its work come before.
  using Clock = std::vector<std::uint64_t>;
  /// Where a piece of work stands: behind what `before` counts, itself included.
  struct Place {
    std::size_t stream;
    std::uint64_t number;  // of all work, in the order of the host's calls
    Clock before;
  };

  std::size_t begin_stream();
  /// Its work is done, and the host knows.
  void end_stream(std::size_t stream);
  std::shared_ptr<const Place> enqueue(std::size_t stream);
  /// What an event recorded now stands for.
  const Clock& recorded(std::size_t stream) const { return streams_[stream].clock; }
  void wait(std::size_t stream, const Clock& event) { join(streams_[stream].clock, event); }
  void host_waited(const Clock& event) { join(host_, event); }

  /// Of the work at `place`, until the last 256 of such works are younger.
  void claim(std::shared_ptr<const Place> place, Claims claims);
  /// After a failure, when all work has been dropped.
  void forget_claims() { claimed_.clear(); }

  /// The work at `place` runs, until end_work().
  void begin_work(const Place& place);
  void end_work() { unordered_.clear(); }
  /// What is wrong with a use of the bytes by the work that runs, as the end of a sentence about
  /// it; empty where nothing is.
  std::string problem_with(const void* address, std::int64_t bytes, Use use) const {
    return unordered_.empty() ? std::string() : conflict(address, bytes, use);
  }

 private:
  struct Claimed {
    std::shared_ptr<const Place> place;
    Claims claims;
  };
  struct Stream {
    Clock clock;
    bool in_use;
  };

  static void join(Clock& clock, const Clock& other);
  static bool is_before(const Place& earlier, const Place& later);
  std::string conflict(const void* address, std::int64_t bytes, Use use) const;

  std::vector<Stream> streams_;
  Clock host_;
  std::uint64_t number_ = 0;
  std::deque<Claimed> claimed_;
  // Those that nothing orders with the work that runs.
  std::vector<const Claimed*> unordered_;
  std::uint64_t running_ = 0;
};

}  // namespace coppice::emulated
