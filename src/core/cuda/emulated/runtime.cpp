// The CUDA runtime's calls on the emulated device.
#include "core/cuda/runtime.hpp"

#include <chrono>
#include <cstring>
#include <vector>

#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/pinned_memory.hpp"
#include "core/cuda/emulated/scheduler.hpp"
#include "core/cuda/emulated/stream.hpp"

namespace coppice {
namespace {

// The driver's part of the machine, one per process as the GPU itself: CUDA's calls name a stream
// or an address and find the rest without being handed it.
struct Driver {
  emulated::PinnedMemory pinned;
  emulated::Scheduler scheduler{emulated::gpu().memory.pages(), emulated::gpu().order};
};

Driver& driver() {
  static Driver driver;
  driver.scheduler.set_seed(emulated::gpu().options.seed);
  return driver;
}

emulated::Scheduler::Queue& queue_of(cuda::StreamState& stream) {
  return *static_cast<emulated::Scheduler::Queue*>(stream.native);
}

std::int64_t extent(std::int64_t bytes, std::int64_t rows, std::int64_t stride) {
  return (rows - 1) * stride + bytes;
}

void check_device_is_there(const Device& device) {
  if (device.kind == DeviceKind::kCuda && device.index == 0) return;
  throw DeviceError(fmt::format(
      "there is no device {} (the emulated device is cuda:0 alone). Use device index 0.",
      device.to_string()));
}

// The host's side of a copy that is not pinned, taken or given while the call lasts.
void copy_rows(const cuda::Copy& copy) {
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.to_stride,
                static_cast<const std::byte*>(copy.from) + row * copy.from_stride,
                static_cast<std::size_t>(copy.bytes));
  }
}

// It is given back all the same, or what follows would speak of that too.
void release(std::byte* block) {
  auto& gpu = emulated::gpu();
  const auto conflict =
      gpu.order.problem_with(block, gpu.memory.bytes_of(block), emulated::Use::kWrite);
  gpu.memory.release(block);
  if (!conflict.empty())
    throw DeviceError(fmt::format("a buffer is given back that holds {}", conflict));
}

// Which bytes of the device hold something after a copy.
void note_copied_rows(const cuda::Copy& copy) {
  auto& memory = emulated::gpu().memory;
  for (std::int64_t row = 0; row < copy.rows && copy.kind != cuda::CopyKind::kToHost; ++row) {
    const auto* to = static_cast<std::byte*>(copy.to) + row * copy.to_stride;
    if (copy.kind == cuda::CopyKind::kToDevice) {
      memory.note_contents(to, copy.bytes);
    } else {
      memory.note_copy(to, static_cast<const std::byte*>(copy.from) + row * copy.from_stride,
                       copy.bytes);
    }
  }
}

}  // namespace

namespace emulated {

void enqueue(cuda::StreamState& stream, std::string name, std::function<void()> work) {
  driver().scheduler.enqueue(queue_of(stream), std::move(name), std::move(work));
}

void enqueue_attempts(cuda::StreamState& stream, std::string name, std::function<bool()> attempt,
                      Claims claims) {
  driver().scheduler.enqueue_attempts(queue_of(stream), std::move(name), std::move(attempt),
                                      std::move(claims));
}

void go_on() { driver().scheduler.go_on(); }

void check_device_range(const char* what, const void* address, std::int64_t bytes, Use use) {
  const auto problem = gpu().memory.problem_with(address, bytes);
  if (problem.empty()) {
    const auto conflict = gpu().order.problem_with(address, bytes, use);
    if (conflict.empty()) return;
    throw DeviceError(fmt::format(
        "{} {} {}", what, use == Use::kRead ? "is read from at" : "is written to at", conflict));
  }
  throw DeviceError(
      fmt::format("{} reaches {} bytes at {}, which are {} (they may be another "
                  "tensor's). Check extents, and that the buffer still lives.",
                  what, bytes, fmt::ptr(address), problem));
}

}  // namespace emulated

namespace cuda {

namespace {

emulated::Scheduler::Look look_of(WaitObserver* observer) {
  if (observer == nullptr) return {};
  return [observer] { observer->look(); };
}

// A device that was given what an aborted collective left in memory may well fail of that: the
// observer knows the reason.
template <class Finish>
void finish_observed(WaitObserver* observer, const Finish& finish) {
  ++emulated::gpu().statistics.host_waits;
  try {
    finish(look_of(observer));
  } catch (const DeviceError&) {
    if (observer) observer->look();
    throw;
  }
  if (observer) observer->look();
}

}  // namespace

struct EventState {
  std::shared_ptr<emulated::Scheduler::Mark> mark;
  std::shared_ptr<WaitObserver> observer;
};
struct TimeMark {
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
  std::shared_ptr<emulated::Scheduler::Mark> mark;
};

StreamState* begin_stream(const Device& device) {
  check_device_is_there(device);
  return new StreamState{device, driver().scheduler.begin_queue(), nullptr, nullptr, nullptr};
}
void end(StreamState* stream) {
  auto* queue = &queue_of(*stream);
  // What the stream's work uses ends after the work.
  driver().scheduler.end_queue(queue);
  delete stream;
}
EventState* record(StreamState& stream) {
  return new EventState{driver().scheduler.record(queue_of(stream)), stream.observer};
}
void end(EventState* event) { delete event; }
void wait(const EventState& event) {
  finish_observed(event.observer.get(), [&](const emulated::Scheduler::Look& look) {
    driver().scheduler.finish(*event.mark, look);
  });
}
bool is_past(const EventState& event) { return event.mark->reached; }
void wait(StreamState& stream, const EventState& event) {
  driver().scheduler.wait(queue_of(stream), event.mark);
}

TimeMarkPtr mark_time(StreamState& stream) {
  auto time = std::make_shared<std::chrono::steady_clock::time_point>();
  emulated::enqueue(stream, "a time mark", [time] { *time = std::chrono::steady_clock::now(); });
  return TimeMarkPtr(new TimeMark{time, driver().scheduler.record(queue_of(stream))});
}
void EndTimeMark::operator()(TimeMark* mark) const { delete mark; }
double seconds_between(const TimeMark& begin, const TimeMark& end) {
  driver().scheduler.finish(*end.mark);
  return std::chrono::duration<double>(*end.time - *begin.time).count();
}

void synchronize(StreamState& stream) {
  finish_observed(stream.observer.get(), [&](const emulated::Scheduler::Look& look) {
    driver().scheduler.finish(queue_of(stream), look);
  });
}
void synchronize_device(const Device& device) {
  check_device_is_there(device);
  ++emulated::gpu().statistics.host_waits;
  driver().scheduler.finish_all();
}

void release_unused(const Device& device) { synchronize_device(device); }

std::byte* allocate(StreamState& stream, std::int64_t bytes) {
  std::byte* block = emulated::gpu().memory.reserve(bytes);
  if (block == nullptr) return nullptr;
  driver().scheduler.enqueue(
      queue_of(stream), "an allocation", [block] { emulated::gpu().memory.begin_use(block); },
      /*always=*/true);
  return block;
}
void free(StreamState& stream, std::byte* block) {
  driver().scheduler.enqueue(
      queue_of(stream), "a free", [block] { release(block); },
      /*always=*/true);
}

std::byte* allocate_pinned(std::int64_t bytes) { return driver().pinned.allocate(bytes); }
void free_pinned(std::byte* block) { driver().pinned.release(block); }

void copy(StreamState& stream, const Copy& copy) {
  if (copy.bytes == 0 || copy.rows == 0) return;
  const auto to_bytes = extent(copy.bytes, copy.rows, copy.to_stride);
  const auto from_bytes = extent(copy.bytes, copy.rows, copy.from_stride);
  Driver& all = driver();
  const bool to_device = copy.kind != CopyKind::kToHost;
  const bool from_device = copy.kind != CopyKind::kToDevice;
  const bool pinned_to = !to_device && all.pinned.holds(copy.to);
  const bool pinned_from = !from_device && all.pinned.holds(copy.from);
  // Any other memory of the host may be gone once this returns.
  auto taken = std::make_shared<std::vector<std::byte>>();
  if (!from_device && !pinned_from) {
    const auto* from = static_cast<const std::byte*>(copy.from);
    taken->assign(from, from + from_bytes);
  }
  emulated::enqueue(stream, "a copy", [=] {
    Copy now = copy;
    if (to_device)
      emulated::check_device_range("a copy's target", now.to, to_bytes, emulated::Use::kWrite);
    if (from_device)
      emulated::check_device_range("a copy's source", now.from, from_bytes, emulated::Use::kRead);
    if (pinned_to) driver().pinned.check("a copy's target", now.to, to_bytes);
    if (pinned_from) driver().pinned.check("a copy's source", now.from, from_bytes);
    if (!taken->empty()) now.from = taken->data();
    copy_rows(now);
    note_copied_rows(copy);
  });
  if (!to_device && !pinned_to) synchronize(stream);
}

void fill(StreamState& stream, void* to, std::uint8_t value, std::int64_t bytes, std::int64_t rows,
          std::int64_t stride) {
  if (bytes == 0 || rows == 0) return;
  emulated::enqueue(stream, "a fill", [=] {
    emulated::check_device_range("a fill", to, extent(bytes, rows, stride), emulated::Use::kWrite);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memset(static_cast<std::byte*>(to) + row * stride, value,
                  static_cast<std::size_t>(bytes));
      // With all bits set, Memory::poison says that nothing is there.
      emulated::gpu().memory.note_contents(static_cast<std::byte*>(to) + row * stride, bytes,
                                           value != 0xff);
    }
  });
}

DeviceProperties properties(const Device& device) {
  check_device_is_there(device);
  return {.name = "emulated device",
          .memory_bytes = std::int64_t{16} << 30,
          .shared_bytes_per_block = emulated::gpu().options.shared_limit,
          .multiprocessors = 4,
          .compute_capability = 80};
}
int device_count() { return 1; }

}  // namespace cuda
}  // namespace coppice
