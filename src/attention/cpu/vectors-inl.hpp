// Names for Highway's vectors, once per kind of CPU. Vectors are kept in arrays here, which
// sizeless vector types (SVE, RVV) do not allow: those targets are left out.
#if defined(COPPICE_ATTENTION_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_ATTENTION_CPU_VECTORS_INL_H_
#undef COPPICE_ATTENTION_CPU_VECTORS_INL_H_
#else
#define COPPICE_ATTENTION_CPU_VECTORS_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Index = std::int64_t;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;

template <class T>
HWY_INLINE Index lanes() {
  return static_cast<Index>(hn::Lanes(Tag<T>()));
}

}  // namespace HWY_NAMESPACE
}  // namespace coppice::cpu
HWY_AFTER_NAMESPACE();

#endif
