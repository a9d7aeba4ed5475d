// Moving rows between tensors and stacked tiles, scaled or summed on the way. Highway compiles them
// once per kind of CPU and chooses at run time.
#include "attention/cpu/prefix_attention_kernels.hpp"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/prefix_attention_rows.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include "attention/cpu/vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu {
namespace HWY_NAMESPACE {

template <class T>
void scale(Index rows, Index dim, const T* factor, T* x) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index row = 0; row < rows; ++row, x += dim) {
    if (factor[row] == T{1}) continue;
    const auto f = hn::Set(d, factor[row]);
    Index i = 0;
    for (; i + step <= dim; i += step) hn::StoreU(hn::Mul(f, hn::LoadU(d, x + i)), d, x + i);
    for (; i < dim; ++i) x[i] *= factor[row];
  }
}

template <class T>
void stack(const T* src, Index src_stride, Index head_stride, Index rows, Index heads, Index dim,
           T scale, T* dst) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto factor = hn::Set(d, scale);
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, dst += dim) {
      const T* from = src + i * src_stride + h * head_stride;
      Index c = 0;
      for (; c + step <= dim; c += step) {
        hn::StoreU(hn::Mul(factor, hn::LoadU(d, from + c)), d, dst + c);
      }
      for (; c < dim; ++c) dst[c] = scale * from[c];
    }
  }
}

template <class T>
void unstack(const T* src, const T* factor, Index rows, Index heads, Index dim, T* dst,
             Index dst_stride, Index head_stride) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, src += dim, ++factor) {
      const auto f = hn::Set(d, *factor);
      T* to = dst + i * dst_stride + h * head_stride;
      Index c = 0;
      for (; c + step <= dim; c += step) hn::StoreU(hn::Mul(f, hn::LoadU(d, src + c)), d, to + c);
      for (; c < dim; ++c) to[c] = *factor * src[c];
    }
  }
}

template <class T>
void dots(const T* a, Index a_stride, Index head_stride, const T* b, Index rows, Index heads,
          Index dim, T* out) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, b += dim, ++out) {
      const T* from = a + i * a_stride + h * head_stride;
      auto acc = hn::Zero(d);
      Index c = 0;
      for (; c + step <= dim; c += step) {
        acc = hn::MulAdd(hn::LoadU(d, from + c), hn::LoadU(d, b + c), acc);
      }
      T sum = hn::GetLane(hn::SumOfLanes(d, acc));
      for (; c < dim; ++c) sum += from[c] * b[c];
      *out = sum;
    }
  }
}

template <class T>
void add_parts(const T* const* parts, Index count, Index rows, Index heads, Index dim, T factor,
               T* dst, Index dst_stride, Index head_stride) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto f = hn::Set(d, factor);
  Index from = 0;
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, from += dim) {
      T* to = dst + i * dst_stride + h * head_stride;
      Index c = 0;
      for (; c + step <= dim; c += step) {
        auto sum = hn::Zero(d);
        for (Index p = 0; p < count; ++p) sum = hn::Add(sum, hn::LoadU(d, parts[p] + from + c));
        hn::StoreU(hn::Mul(f, sum), d, to + c);
      }
      for (; c < dim; ++c) {
        T sum = 0;
        for (Index p = 0; p < count; ++p) sum += parts[p][from + c];
        to[c] = factor * sum;
      }
    }
  }
}

template <class T>
void write(const T* src, Index rows, Index dim, T factor, bool add, T* dst, Index dst_stride) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto f = hn::Set(d, factor);
  for (Index r = 0; r < rows; ++r, src += dim, dst += dst_stride) {
    Index c = 0;
    for (; c + step <= dim; c += step) {
      const auto x = hn::LoadU(d, src + c);
      hn::StoreU(add ? hn::MulAdd(f, x, hn::LoadU(d, dst + c)) : hn::Mul(f, x), d, dst + c);
    }
    for (; c < dim; ++c) dst[c] = add ? dst[c] + factor * src[c] : factor * src[c];
  }
}

// HWY_EXPORT takes plain functions: one name per type.
#define COPPICE_KERNELS(T, Suffix)                                                                \
  void Stack##Suffix(const T* src, std::int64_t src_stride, std::int64_t head_stride,             \
                     std::int64_t rows, std::int64_t heads, std::int64_t dim, T factor, T* dst) { \
    stack<T>(src, src_stride, head_stride, rows, heads, dim, factor, dst);                        \
  }                                                                                               \
  void Scale##Suffix(std::int64_t rows, std::int64_t dim, const T* factor, T* x) {                \
    scale<T>(rows, dim, factor, x);                                                               \
  }                                                                                               \
  void Dots##Suffix(const T* a, std::int64_t a_stride, std::int64_t head_stride, const T* b,      \
                    std::int64_t rows, std::int64_t heads, std::int64_t dim, T* out) {            \
    dots<T>(a, a_stride, head_stride, b, rows, heads, dim, out);                                  \
  }                                                                                               \
  void Parts##Suffix(const T* const* parts, std::int64_t count, std::int64_t rows,                \
                     std::int64_t heads, std::int64_t dim, T factor, T* dst,                      \
                     std::int64_t dst_stride, std::int64_t head_stride) {                         \
    add_parts<T>(parts, count, rows, heads, dim, factor, dst, dst_stride, head_stride);           \
  }                                                                                               \
  void Write##Suffix(const T* src, std::int64_t rows, std::int64_t dim, T factor, bool add,       \
                     T* dst, std::int64_t dst_stride) {                                           \
    write<T>(src, rows, dim, factor, add, dst, dst_stride);                                       \
  }                                                                                               \
  void Unstack##Suffix(const T* src, const T* factor, Index rows, Index heads, Index dim, T* dst, \
                       Index ld, Index lh) {                                                      \
    unstack<T>(src, factor, rows, heads, dim, dst, ld, lh);                                       \
  }
COPPICE_KERNELS(float, F32)
COPPICE_KERNELS(double, F64)
#undef COPPICE_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace coppice::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {

#define COPPICE_DISPATCH(T, Suffix)                                                                \
  HWY_EXPORT(Stack##Suffix);                                                                       \
  void stack_rows(const T* src, std::int64_t src_stride, std::int64_t head_stride,                 \
                  std::int64_t rows, std::int64_t heads, std::int64_t dim, T factor, T* dst) {     \
    HWY_DYNAMIC_DISPATCH(Stack##Suffix)                                                            \
    (src, src_stride, head_stride, rows, heads, dim, factor, dst);                                 \
  }                                                                                                \
  HWY_EXPORT(Scale##Suffix);                                                                       \
  void scale_rows(std::int64_t rows, std::int64_t dim, const T* factor, T* x) {                    \
    HWY_DYNAMIC_DISPATCH(Scale##Suffix)(rows, dim, factor, x);                                     \
  }                                                                                                \
  HWY_EXPORT(Dots##Suffix);                                                                        \
  void row_dots(const T* a, std::int64_t a_stride, std::int64_t head_stride, const T* b,           \
                std::int64_t rows, std::int64_t heads, std::int64_t dim, T* out) {                 \
    HWY_DYNAMIC_DISPATCH(Dots##Suffix)(a, a_stride, head_stride, b, rows, heads, dim, out);        \
  }                                                                                                \
  HWY_EXPORT(Parts##Suffix);                                                                       \
  void sum_parts(const T* const* parts, std::int64_t count, std::int64_t rows, std::int64_t heads, \
                 std::int64_t dim, T factor, T* dst, std::int64_t dst_stride,                      \
                 std::int64_t head_stride) {                                                       \
    HWY_DYNAMIC_DISPATCH(Parts##Suffix)                                                            \
    (parts, count, rows, heads, dim, factor, dst, dst_stride, head_stride);                        \
  }                                                                                                \
  HWY_EXPORT(Write##Suffix);                                                                       \
  void write_rows(const T* src, std::int64_t rows, std::int64_t dim, T factor, bool add, T* dst,   \
                  std::int64_t dst_stride) {                                                       \
    HWY_DYNAMIC_DISPATCH(Write##Suffix)(src, rows, dim, factor, add, dst, dst_stride);             \
  }                                                                                                \
  HWY_EXPORT(Unstack##Suffix);                                                                     \
  void unstack_rows(const T* src, const T* factor, std::int64_t rows, std::int64_t heads,          \
                    std::int64_t dim, T* dst, std::int64_t dst_stride, std::int64_t head_stride) { \
    HWY_DYNAMIC_DISPATCH(Unstack##Suffix)                                                          \
    (src, factor, rows, heads, dim, dst, dst_stride, head_stride);                                 \
  }
COPPICE_DISPATCH(float, F32)
COPPICE_DISPATCH(double, F64)
#undef COPPICE_DISPATCH

}  // namespace coppice::cpu
#endif  // HWY_ONCE
