// The row helpers on the CPU. All of them wait for memory, so plain loops over spread rows do.
#include "layers/rows.hpp"

#include <algorithm>
#include <array>

#include "core/parallel_for.hpp"

namespace coppice::cpu {
namespace {

template <class T>
T* row(TensorView tensor, std::int64_t t) {
  return tensor.data<T>() + t * tensor.strides()[0];
}
template <class T>
const T* row(ConstTensorView tensor, std::int64_t t) {
  return tensor.data<T>() + t * tensor.strides()[0];
}

// Columns summed by one body of bias_backward; their sums stay in registers and the first cache.
constexpr std::int64_t kColumnTile = 64;

}  // namespace

void add_rows(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum) {
  const auto width = a.shape()[1];
  visit_float(a.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for_ranges(ctx, a.shape()[0], 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T *x = row<T>(a, t), *y = row<T>(b, t);
        T* out = row<T>(sum, t);
        for (std::int64_t i = 0; i < width; ++i) out[i] = x[i] + y[i];
      }
    });
  });
}

void add_bias(ExecContext& ctx, ConstTensorView bias, TensorView y) {
  const auto width = y.shape()[1];
  visit_float(y.dtype(), [&]<class T>(TypeTag<T>) {
    const T* b = bias.data<T>();
    parallel_for_ranges(ctx, y.shape()[0], 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        T* out = row<T>(y, t);
        for (std::int64_t i = 0; i < width; ++i) out[i] += b[i];
      }
    });
  });
}

void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias) {
  const auto width = dy.shape()[1];
  visit_float(dy.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for(ctx, (width + kColumnTile - 1) / kColumnTile, [&](std::int64_t tile) {
      const auto begin = tile * kColumnTile, count = std::min(kColumnTile, width - begin);
      std::array<double, kColumnTile> sums{};
      for (std::int64_t t = 0; t < dy.shape()[0]; ++t) {
        const T* in = row<T>(dy, t) + begin;
        for (std::int64_t i = 0; i < count; ++i) {
          sums[static_cast<std::size_t>(i)] += static_cast<double>(in[i]);
        }
      }
      T* out = dbias.data<T>() + begin;
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] += static_cast<T>(sums[static_cast<std::size_t>(i)]);
      }
    });
  });
}

void gather_rows(ExecContext& ctx, ConstTensorView x, std::span<const std::int64_t> rows,
                 TensorView picked) {
  const auto width = x.shape()[1];
  visit_float(x.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for_ranges(ctx, std::ssize(rows), 32, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::copy_n(row<T>(x, rows[static_cast<std::size_t>(i)]), width, row<T>(picked, i));
      }
    });
  });
}

void scatter_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                  TensorView dx) {
  const auto width = dx.shape()[1];
  visit_float(dx.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for_ranges(ctx, dx.shape()[0], 32, [&](std::int64_t begin, std::int64_t end) {
      auto next = std::lower_bound(rows.begin(), rows.end(), begin);
      for (std::int64_t t = begin; t < end; ++t) {
        if (next != rows.end() && *next == t) {
          std::copy_n(row<T>(d_picked, next - rows.begin()), width, row<T>(dx, t));
          ++next;
        } else {
          std::fill_n(row<T>(dx, t), width, T{0});
        }
      }
    });
  });
}

void add_to_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                 TensorView dx) {
  const auto width = dx.shape()[1];
  visit_float(dx.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for_ranges(ctx, std::ssize(rows), 32, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* in = row<T>(d_picked, i);
        T* out = row<T>(dx, rows[static_cast<std::size_t>(i)]);
        for (std::int64_t j = 0; j < width; ++j) out[j] += in[j];
      }
    });
  });
}

}  // namespace coppice::cpu
