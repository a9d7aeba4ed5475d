#include "core/memory.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/build_config.hpp"
#include "core/cuda/runtime.hpp"

namespace coppice {

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      account_(std::exchange(other.account_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    memory_ = std::exchange(other.memory_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    account_ = std::exchange(other.account_, nullptr);
  }
  return *this;
}

void Buffer::release() {
  if (memory_ == nullptr) return;
  memory_->give_back(data_);
  memory_->current_ -= bytes_;
  *account_ -= bytes_;
  memory_ = nullptr;
}

Memory::Memory(Device device) : device_(device) {
  COPPICE_CHECK(device.kind == DeviceKind::kCpu, "memory of {} takes a stream", device.to_string());
}

std::byte* Memory::take(std::int64_t bytes, Lifetime lifetime) {
  if constexpr (build::kWithCuda) {
    if (device_.kind == DeviceKind::kCuda) return cuda::allocate(order_->state(), bytes);
  }
  // A poisoned build looks for faults: there every buffer has bounds that a sanitizer sees.
  const bool shares = lifetime == Lifetime::kRun && !build::kPoison &&
                      bytes >= cpu::HugeBlocks::kSmallest && bytes < cpu::HugeBlocks::kLargest;
  return shares ? run_.take(bytes) : cpu::allocate_block(bytes);
}

void Memory::give_back(std::byte* data) {
  if constexpr (build::kWithCuda) {
    if (device_.kind == DeviceKind::kCuda) {
      if (data != nullptr) cuda::free(order_->state(), data);
      return;
    }
  }
  if (!run_.give_back(data)) std::free(data);
}

void Memory::poison(std::byte* data, std::int64_t bytes) {
  // All bits set is a NaN in every float type, so a read before a write shows in the results.
  if (!build::kPoison || bytes == 0) return;
  if constexpr (build::kWithCuda) {
    if (device_.kind == DeviceKind::kCuda) return cuda::fill(order_->state(), data, 0xff, bytes);
  }
  std::memset(data, 0xff, static_cast<std::size_t>(bytes));
}

Buffer Memory::allocate(std::int64_t bytes, std::string_view name, Lifetime lifetime) {
  COPPICE_CHECK(bytes >= 0, "{}: a buffer of {} bytes", name, bytes);
  std::byte* data = bytes == 0 ? nullptr : take(bytes, lifetime);
  if (bytes > 0 && data == nullptr) {
    throw DeviceError(
        fmt::format("no memory for {} ({} bytes wanted, {} held already). Lower "
                    "batching.max_rows_per_microbatch "
                    "or set numerics.recompute: BLOCK; `coppice plan` shows what a run needs.",
                    name, bytes, current_));
  }
  poison(data, bytes);
  auto& account = by_name_.try_emplace(std::string(name), 0).first->second;
  account += bytes;
  current_ += bytes;
  peak_ = std::max(peak_, current_);
  return Buffer(*this, data, bytes, &account);
}

}  // namespace coppice
