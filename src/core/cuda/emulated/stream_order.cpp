#include "core/cuda/emulated/stream_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace coppice::emulated {
namespace {

constexpr std::size_t kClaimsKept = 256;

std::uint64_t count(const StreamOrder::Clock& clock, std::size_t stream) {
  return stream < clock.size() ? clock[stream] : 0;
}

}  // namespace

void StreamOrder::join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

bool StreamOrder::is_before(const Place& earlier, const Place& later) {
  return count(later.before, earlier.stream) >= count(earlier.before, earlier.stream);
}

// The number of a stream that has ended is taken again; its count goes on, so that what the old
// one did stays known as done.
std::size_t StreamOrder::begin_stream() {
  const auto free = std::find_if(streams_.begin(), streams_.end(),
                                 [](const Stream& stream) { return !stream.in_use; });
  const auto index = static_cast<std::size_t>(free - streams_.begin());
  if (free == streams_.end()) streams_.push_back({});
  streams_[index].in_use = true;
  if (streams_[index].clock.size() <= index) streams_[index].clock.resize(index + 1);
  return index;
}

void StreamOrder::end_stream(std::size_t stream) {
  join(host_, streams_[stream].clock);
  streams_[stream].in_use = false;
}

std::shared_ptr<const StreamOrder::Place> StreamOrder::enqueue(std::size_t stream) {
  Clock& clock = streams_[stream].clock;
  join(clock, host_);
  ++clock[stream];
  return std::make_shared<const Place>(Place{stream, ++number_, clock});
}

void StreamOrder::claim(std::shared_ptr<const Place> place, Claims claims) {
  claimed_.push_back({std::move(place), std::move(claims)});
  if (claimed_.size() > kClaimsKept) claimed_.pop_front();
}

void StreamOrder::begin_work(const Place& place) {
  running_ = place.number;
  unordered_.clear();
  for (const Claimed& claimed : claimed_) {
    const auto& given_up = claimed.claims.given_up;
    if (given_up && *given_up) continue;
    if (!is_before(*claimed.place, place) && !is_before(place, *claimed.place))
      unordered_.push_back(&claimed);
  }
}

std::string StreamOrder::conflict(const void* address, std::int64_t bytes, Use use) const {
  const auto* begin = static_cast<const std::byte*>(address);
  for (const Claimed* claimed : unordered_) {
    for (const Claims::Range& claim : claimed->claims.ranges) {
      const auto* of_claim = static_cast<const std::byte*>(claim.begin);
      if (begin >= of_claim + claim.bytes || of_claim >= begin + bytes) continue;
      if (use == Use::kRead && claim.use == Use::kRead) continue;
      const auto where =
          fmt::format("byte {} of {}", std::max<std::int64_t>(begin - of_claim, 0), claim.what);
      if (running_ < claimed->place->number) {
        return fmt::format(
            "{}, which comes after this work but does not wait for it (it may be under way "
            "already). Let its stream wait for an event behind this work.",
            where);
      }
      return fmt::format(
          "{}, which comes before this work, but this stream does not wait for it (it may be under "
          "way still). Wait for its event first, as Pending::finish does.",
          where);
    }
  }
  return {};
}

}  // namespace coppice::emulated
