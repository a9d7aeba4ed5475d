// What the compiler calls before every load and store of a kernel file, because it is told to
// instrument them for a thread sanitizer (-fsanitize=thread when compiling, never when linking:
// that sanitizer's own library is not there), and where one of them finds its address less aligned
// than its type (-fsanitize=alignment). Host code in such a file calls them too and is let pass.
#include <cstddef>
#include <cstdint>

#include "core/cuda/emulated/block.hpp"

namespace {

void check(const void* address, std::size_t bytes, bool write, const void* code) {
  using coppice::emulated::Block;
  if (Block::in_kernel() == nullptr) return;
  coppice::emulated::InEmulator inside;
  inside.block().check_access(address, static_cast<std::int64_t>(bytes), write, code);
}

// What the compiler hands over about an address that is not aligned (its "type mismatch data").
struct Mismatch {
  const char* file;
  std::uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};

}  // namespace

#define COPPICE_HOOKS(bytes)                                   \
  void __tsan_read##bytes(void* address) {                     \
    check(address, bytes, false, __builtin_return_address(0)); \
  }                                                            \
  void __tsan_write##bytes(void* address) {                    \
    check(address, bytes, true, __builtin_return_address(0));  \
  }                                                            \
  void __tsan_unaligned_read##bytes(void* address) {           \
    check(address, bytes, false, __builtin_return_address(0)); \
  }                                                            \
  void __tsan_unaligned_write##bytes(void* address) {          \
    check(address, bytes, true, __builtin_return_address(0));  \
  }

extern "C" {
COPPICE_HOOKS(1)
COPPICE_HOOKS(2)
COPPICE_HOOKS(4)
COPPICE_HOOKS(8)
COPPICE_HOOKS(16)

void __tsan_read_range(void* address, unsigned long bytes) {
  check(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  check(address, bytes, true, __builtin_return_address(0));
}
void __ubsan_handle_type_mismatch_v1(const Mismatch* what, std::uintptr_t address) {
  using coppice::emulated::Block;
  if (Block::in_kernel() == nullptr) return;
  coppice::emulated::InEmulator inside;
  inside.block().fail_misaligned(address, std::uintptr_t{1} << what->log_alignment, what->file,
                                 what->line);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
