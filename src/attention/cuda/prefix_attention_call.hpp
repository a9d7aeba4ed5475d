#pragma once
// What both of attention's launches need on the host: views of tensors as kernels take them, and
// one copy to the device of everything that a call's kernels look up.
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "attention/cuda/prefix_attention_views.hpp"
#include "attention/prefix_attention.hpp"
#include "core/arena.hpp"

namespace coppice::cuda {

/// Errors    ContractError if rows or heads do not begin at multiples of 16 bytes
HeadRows<const BF16> head_rows(ConstTensorView x, const char* name);
HeadRows<BF16> head_rows(TensorView x, const char* name);

std::vector<SpaceView> space_views(std::span<const KeySpace> spaces);
std::vector<SpaceGradView> space_grad_views(std::span<const KeySpaceGrad> grads);
/// For each space, whether it has somewhere to put gradients.
std::vector<char> learning(std::span<const KeySpaceGrad> grads);

[[noreturn]] void throw_no_kernel(std::int64_t head_dim);

/// Calls f(std::integral_constant<int, head_dim>).
///
/// Errors    ContractError for a head dim that no kernel is compiled for
template <class F>
decltype(auto) visit_head_dim(std::int64_t head_dim, F&& f) {
  switch (head_dim) {
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    default:
      throw_no_kernel(head_dim);
  }
}

/// Lists side by side in one block of the call's scratch, so that a call makes one small copy.
class DeviceLists {
 public:
  /// Adds a list; returns where it lies.
  template <class T>
  std::int64_t add(std::span<const T> list) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto place = padded(std::ssize(bytes_));
    bytes_.resize(static_cast<std::size_t>(place + padded_bytes<T>(std::ssize(list))));
    if (!list.empty()) {
      std::memcpy(bytes_.data() + place, list.data(), list.size_bytes());
    }
    return place;
  }
  template <class T>
  std::int64_t add(const std::vector<T>& list) {
    return add(std::span<const T>(list));
  }

  void upload(ExecContext& ctx, ScratchScope& scratch);
  template <class T>
  const T* at(std::int64_t place) const {
    return reinterpret_cast<const T*>(on_device_ + place);
  }

  /// Bytes that a list of `count` adds to a block.
  template <class T>
  static std::int64_t padded_bytes(std::int64_t count) {
    return padded(count * std::int64_t{sizeof(T)});
  }
  /// What a block of so many bytes leases.
  static std::int64_t leased_bytes(std::int64_t bytes);

 private:
  static std::int64_t padded(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

  std::vector<std::byte> bytes_;
  const std::byte* on_device_ = nullptr;
};

}  // namespace coppice::cuda
