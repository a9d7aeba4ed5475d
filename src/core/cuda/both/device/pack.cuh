#pragma once
// Several neighbouring elements moved as one, so that a thread's load or store is up to 16 bytes
// wide. The address must be aligned to the whole pack.
#include "device/launch.cuh"

namespace coppice::device {

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  static_assert(sizeof(T) * kCount <= 16 && (sizeof(T) * kCount & (sizeof(T) * kCount - 1)) == 0,
                "a pack is 2, 4, 8 or 16 bytes");
  T values[kCount];

  __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
};

template <int kCount, class T>
__device__ __forceinline__ Pack<T, kCount> load_pack(const T* source) {
  return *reinterpret_cast<const Pack<T, kCount>*>(source);
}
template <int kCount, class T>
__device__ __forceinline__ void store_pack(T* target, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(target) = pack;
}

}  // namespace coppice::device
