#include "core/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/cuda/runtime.hpp"

namespace coppice {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kHugeFrom = 4 << 20;

std::byte* allocate_bytes(std::int64_t bytes) {
  const bool huge = bytes >= kHugeFrom;
  const auto alignment = static_cast<std::size_t>(huge ? kHugePage : 64);
  const auto size = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, size);
  // Advice only: where huge pages are off the block works all the same.
  if (data != nullptr && huge) madvise(data, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

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

std::byte* Memory::take(std::int64_t bytes) {
  if constexpr (build::kWithCuda) {
    if (device_.kind == DeviceKind::kCuda) return cuda::allocate(order_->state(), bytes);
  }
  return allocate_bytes(bytes);
}

void Memory::give_back(std::byte* data) {
  if constexpr (build::kWithCuda) {
    if (device_.kind == DeviceKind::kCuda) {
      if (data != nullptr) cuda::free(order_->state(), data);
      return;
    }
  }
  std::free(data);
}

void Memory::poison(std::byte* data, std::int64_t bytes) {
  // All bits set is a NaN in every float type, so a read before a write shows in the results.
  if (!build::kPoison || bytes == 0) return;
  if constexpr (build::kWithCuda) {
    if (device_.kind == DeviceKind::kCuda) return cuda::fill(order_->state(), data, 0xff, bytes);
  }
  std::memset(data, 0xff, static_cast<std::size_t>(bytes));
}

Buffer Memory::allocate(std::int64_t bytes, std::string_view name) {
  COPPICE_CHECK(bytes >= 0, "{}: a buffer of {} bytes", name, bytes);
  std::byte* data = bytes == 0 ? nullptr : take(bytes);
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
