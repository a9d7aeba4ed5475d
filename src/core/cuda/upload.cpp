#include "core/cuda/upload.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/cuda/runtime.hpp"

namespace coppice::cuda {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSmallest = 256 << 10;

// Pinned memory in two halves. One fills while the copies out of the other are on their way; before
// a half is used again, the host waits for the copies that it held.
class Staging : public Attachment {
 public:
  ~Staging() override { free_pinned(block_); }

  // Room for `bytes`, until the copy enqueued next is done.
  std::byte* take(Stream& stream, std::int64_t bytes) {
    const auto size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (size > half_bytes_) grow(stream, size);
    if (used_ + size > half_bytes_) {
      copied_[half_] = stream.record();
      half_ = 1 - half_;
      copied_[half_].wait();
      used_ = 0;
    }
    std::byte* room = block_ + static_cast<std::int64_t>(half_) * half_bytes_ + used_;
    used_ += size;
    return room;
  }

 private:
  void grow(Stream& stream, std::int64_t size) {
    stream.synchronize();
    free_pinned(std::exchange(block_, nullptr));
    half_bytes_ = std::max({kSmallest, 2 * half_bytes_, size});
    block_ = allocate_pinned(2 * half_bytes_);
    copied_ = {};
    half_ = 0;
    used_ = 0;
  }

  std::byte* block_ = nullptr;
  std::int64_t half_bytes_ = 0, used_ = 0;
  std::size_t half_ = 0;
  std::array<Event, 2> copied_;
};

}  // namespace

const std::byte* upload_bytes(ExecContext& ctx, ScratchScope& scratch, const void* from,
                              std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  const auto words = (bytes + 7) / 8;
  std::byte* to = scratch.lease(DType::kI64, {words}).bytes();
  auto& state = ctx.stream.state();
  if (!state.staging) state.staging = std::make_unique<Staging>();
  std::byte* room = static_cast<Staging&>(*state.staging).take(ctx.stream, bytes);
  std::memcpy(room, from, static_cast<std::size_t>(bytes));
  copy(state, {.kind = CopyKind::kToDevice, .to = to, .from = room, .bytes = bytes});
  return to;
}

}  // namespace coppice::cuda
