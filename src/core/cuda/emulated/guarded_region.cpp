#include "core/cuda/emulated/guarded_region.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "core/error.hpp"

namespace coppice::emulated {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kReserved = std::int64_t{1} << 40;  // addresses, not memory

// What the signal handler compares with: it is told an address and nothing else.
std::atomic<std::uintptr_t> guarded_begin = 0;

void say_what_happened(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (address - guarded_begin < static_cast<std::uintptr_t>(kReserved)) {
    constexpr char kText[] =
        "the host reached into the emulated device's memory through a pointer (on a GPU this is a "
        "segmentation fault). Use copy() or set_zero(), or enqueue the work.\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  }
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  sigaction(signal, &usual, nullptr);  // the access is tried again and ends the process as ever
}

std::int64_t whole_pages(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

GuardedRegion::~GuardedRegion() {
  if (begin_ == nullptr) return;
  munmap(begin_, kReserved);
  auto own = reinterpret_cast<std::uintptr_t>(begin_);
  guarded_begin.compare_exchange_strong(own, 0);
}

std::byte* GuardedRegion::take(std::int64_t bytes) {
  if (begin_ == nullptr) {
    void* range =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return nullptr;
    begin_ = static_cast<std::byte*>(range);
    guarded_begin = reinterpret_cast<std::uintptr_t>(begin_);
    struct sigaction handler {};
    handler.sa_sigaction = say_what_happened;
    handler.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &handler, nullptr);
  }
  const auto size = whole_pages(bytes);
  if (size > kReserved - used_) return nullptr;
  std::byte* pages = begin_ + used_;
  used_ += size;
  if (opened_ > 0) mprotect(pages, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE);
  return pages;
}

void GuardedRegion::give_back(std::byte* pages, std::int64_t bytes) {
  madvise(pages, static_cast<std::size_t>(whole_pages(bytes)), MADV_DONTNEED);
}

void GuardedRegion::open() {
  if (opened_++ > 0 || used_ == 0) return;
  mprotect(begin_, static_cast<std::size_t>(used_), PROT_READ | PROT_WRITE);
}

void GuardedRegion::close() {
  COPPICE_CHECK(opened_ > 0, "the device's memory is closed already");
  if (--opened_ > 0 || used_ == 0) return;
  mprotect(begin_, static_cast<std::size_t>(used_), PROT_NONE);
}

}  // namespace coppice::emulated
