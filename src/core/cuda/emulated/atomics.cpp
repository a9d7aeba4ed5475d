// Atomic operations of host code in kernel files (a shared pointer's count, say): the compiler
// turns them into these calls along with everything else that it instruments. Kernels have no
// atomics.
#include <atomic>
#include <cstdint>

// The order asked for is never weaker than sequential consistency needs, so that is what all get.
#define COPPICE_ATOMICS(bits)                                                                      \
  std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t* a, int) {     \
    return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile std::uint##bits##_t* a, std::uint##bits##_t v, int) {  \
    __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                \
  std::uint##bits##_t __tsan_atomic##bits##_exchange(volatile std::uint##bits##_t* a,              \
                                                     std::uint##bits##_t v, int) {                 \
    return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  std::uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile std::uint##bits##_t* a,             \
                                                      std::uint##bits##_t v, int) {                \
    return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  std::uint##bits##_t __tsan_atomic##bits##_fetch_sub(volatile std::uint##bits##_t* a,             \
                                                      std::uint##bits##_t v, int) {                \
    return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile std::uint##bits##_t* a,               \
                                                    std::uint##bits##_t* expected,                 \
                                                    std::uint##bits##_t v, int, int) {             \
    return __atomic_compare_exchange_n(a, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile std::uint##bits##_t* a,                 \
                                                  std::uint##bits##_t* expected,                   \
                                                  std::uint##bits##_t v, int, int) {               \
    return __atomic_compare_exchange_n(a, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
  }

extern "C" {
COPPICE_ATOMICS(8)
COPPICE_ATOMICS(16)
COPPICE_ATOMICS(32)
COPPICE_ATOMICS(64)
void __tsan_atomic_thread_fence(int) { std::atomic_thread_fence(std::memory_order_seq_cst); }
}
