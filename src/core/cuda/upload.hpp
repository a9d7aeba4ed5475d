#pragma once
// From a span of the host to scratch of the device: positions, ids, edges, lists of work. Kernels of
// a call read them; the host may forget them as soon as the op returns.
#include <span>
#include <type_traits>

#include "core/exec_context.hpp"

namespace coppice::cuda {

/// A copy of `bytes` bytes in scratch, in the order of ctx.stream; nullptr for none. It goes through
/// pinned memory that belongs to the stream, so nothing waits unless more than that is on its way.
///
/// Memory    aligned to 64 bytes; lives as long as the scope
const std::byte* upload_bytes(ExecContext& ctx, ScratchScope& scratch, const void* from,
                              std::int64_t bytes);

template <class T, std::size_t kExtent>
const std::remove_const_t<T>* upload(ExecContext& ctx, ScratchScope& scratch,
                                     std::span<T, kExtent> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return reinterpret_cast<const std::remove_const_t<T>*>(
      upload_bytes(ctx, scratch, values.data(), static_cast<std::int64_t>(values.size_bytes())));
}

}  // namespace coppice::cuda
