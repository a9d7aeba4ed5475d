// The array form of the conversions: plain loops over blocks that the compiler turns into vectors.
#include "core/convert.hpp"

#include <algorithm>
#include <cstring>

#include "core/build_config.hpp"
#include "core/parallel_for.hpp"

namespace coppice {
namespace {

template <class To, class From>
To convert_one(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, BF16>) {
    if constexpr (std::is_same_v<From, F16>)
      return to_bf16(to_f32(value));
    else
      return to_bf16(value);
  } else if constexpr (std::is_same_v<To, F16>) {
    if constexpr (std::is_same_v<From, BF16>)
      return to_f16(to_f32(value));
    else
      return to_f16(value);
  } else if constexpr (std::is_same_v<From, BF16> || std::is_same_v<From, F16>) {
    return static_cast<To>(to_f32(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class F>
void visit_storage(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>{});
    case DType::kF64:
      return f(TypeTag<double>{});
    case DType::kBF16:
      return f(TypeTag<BF16>{});
    case DType::kF16:
      return f(TypeTag<F16>{});
    default:
      COPPICE_CHECK(false, "{} is not a floating-point type", name_of(dtype));
  }
}

template <class To, class From>
void convert_blocks(const std::byte* source, std::byte* target, std::int64_t count) {
  // Files give no alignment, so elements pass through small arrays on the stack.
  constexpr std::int64_t kBlock = 256;
  From in[kBlock];
  To out[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    std::memcpy(in, source + begin * static_cast<std::int64_t>(sizeof(From)),
                static_cast<std::size_t>(n) * sizeof(From));
    for (std::int64_t i = 0; i < n; ++i) out[i] = convert_one<To>(in[i]);
    std::memcpy(target + begin * static_cast<std::int64_t>(sizeof(To)), out,
                static_cast<std::size_t>(n) * sizeof(To));
  }
}

}  // namespace

void convert_elements(DType source_type, const std::byte* source, DType target_type,
                      std::byte* target, std::int64_t count) {
  if (count <= 0) return;
  visit_storage(source_type, [&]<class From>(TypeTag<From>) {
    visit_storage(target_type, [&]<class To>(TypeTag<To>) {
      if constexpr (std::is_same_v<From, To>) {
        std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(To));
      } else {
        convert_blocks<To, From>(source, target, count);
      }
    });
  });
}

void convert(ExecContext& ctx, ConstTensorView source, TensorView target) {
  COPPICE_CHECK(source.shape() == target.shape() && source.device() == target.device() &&
                    source.is_contiguous() && target.is_contiguous(),
                "convert: {} {} on {} into {} {} on {}", name_of(source.dtype()), source.shape(),
                source.device().to_string(), name_of(target.dtype()), target.shape(),
                target.device().to_string());
  const TraceScope scope(ctx.trace, "convert");
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::convert(ctx, source, target);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::convert(ctx, source, target);
      break;
  }
  throw_no_backend("convert", ctx.device());
}

namespace cpu {
void convert(ExecContext& ctx, ConstTensorView source, TensorView target) {
  constexpr std::int64_t kBlock = 1 << 14;
  const auto count = source.numel();
  parallel_for(ctx, (count + kBlock - 1) / kBlock, [&](std::int64_t i) {
    const auto begin = i * kBlock;
    convert_elements(source.dtype(), source.bytes() + begin * size_of(source.dtype()),
                     target.dtype(), target.bytes() + begin * size_of(target.dtype()),
                     std::min(kBlock, count - begin));
  });
}
}  // namespace cpu

}  // namespace coppice
