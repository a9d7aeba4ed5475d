#include "parallel/nccl/emulated/accumulate.hpp"

#include <cstring>
#include <type_traits>

#include "core/error.hpp"

namespace coppice::nccl {
namespace {

template <class T>
void accumulate(ReduceOp op, const std::byte* values, std::byte* sums, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    T sum, value;
    std::memcpy(&sum, sums + i * std::int64_t{sizeof(T)}, sizeof(T));
    std::memcpy(&value, values + i * std::int64_t{sizeof(T)}, sizeof(T));
    if (op == ReduceOp::kMax) {
      sum = value > sum ? value : sum;
    } else if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      sum = static_cast<T>(static_cast<Unsigned>(sum) + static_cast<Unsigned>(value));
    } else {
      sum += value;
    }
    std::memcpy(sums + i * std::int64_t{sizeof(T)}, &sum, sizeof(T));
  }
}

}  // namespace

void accumulate(DType dtype, ReduceOp op, const std::byte* values, std::byte* sums,
                std::int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return accumulate<float>(op, values, sums, count);
    case DType::kF64:
      return accumulate<double>(op, values, sums, count);
    case DType::kI32:
      return accumulate<std::int32_t>(op, values, sums, count);
    case DType::kI64:
      return accumulate<std::int64_t>(op, values, sums, count);
    case DType::kBF16:
    case DType::kF16:
      break;
  }
  throw DeviceError(fmt::format("a sum of {} over ranks (only f32, f64 and integers are summed)",
                                coppice::name_of(dtype)));
}

}  // namespace coppice::nccl
