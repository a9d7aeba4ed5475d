// Kills or stops the process just before one of the calls that change a checkpoint on disk: a
// write, a sync, a rename or a removal below a directory named "checkpoints". Loaded before the C
// library.
//
//   COPPICE_KILL_AT=n        before call n, counted from 1; a write may have put down its first
//                            half
//   COPPICE_STOP_AT=n        the same with SIGSTOP: a disk that hangs
//   COPPICE_COUNT_FILE=path  the number of calls is written there at the end
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::atomic<long> calls = 0;

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

bool is_checkpoint(std::string_view path) {
  return path.find("/checkpoints") != std::string_view::npos || path.starts_with("checkpoints");
}

bool is_checkpoint(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const auto length = readlink(link, path, sizeof path);
  return length > 0 && is_checkpoint(std::string_view(path, static_cast<std::size_t>(length)));
}

bool is_at(const char* variable, long number) {
  const char* at = std::getenv(variable);
  return at != nullptr && number == std::strtol(at, nullptr, 10);
}

// Whether this is the call to die before.
bool is_the_one() {
  const long number = ++calls;
  if (is_at("COPPICE_STOP_AT", number)) kill(getpid(), SIGSTOP);
  return is_at("COPPICE_KILL_AT", number);
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

__attribute__((destructor)) void tell() {
  const char* path = std::getenv("COPPICE_COUNT_FILE");
  if (path == nullptr) return;
  if (FILE* file = std::fopen(path, "w")) {
    std::fprintf(file, "%ld\n", calls.load());
    std::fclose(file);
  }
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t count) {
  const auto body = real<ssize_t (*)(int, const void*, size_t)>("write");
  if (is_checkpoint(fd) && is_the_one()) {
    if (calls % 2 == 0) (void)!body(fd, data, count / 2);
    die();
  }
  return body(fd, data, count);
}

ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  const auto body = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (is_checkpoint(fd) && is_the_one()) {
    if (calls % 2 == 0) (void)!body(fd, data, count / 2, offset);
    die();
  }
  return body(fd, data, count, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t count, off64_t offset) {
  return pwrite(fd, data, count, offset);
}

int fsync(int fd) {
  if (is_checkpoint(fd) && is_the_one()) die();
  return real<int (*)(int)>("fsync")(fd);
}

int ftruncate(int fd, off_t length) {
  if (is_checkpoint(fd) && is_the_one()) die();
  return real<int (*)(int, off_t)>("ftruncate")(fd, length);
}

int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int rename(const char* from, const char* to) {
  if (is_checkpoint(to) && is_the_one()) die();
  return real<int (*)(const char*, const char*)>("rename")(from, to);
}

int unlink(const char* path) {
  if (is_checkpoint(path) && is_the_one()) die();
  return real<int (*)(const char*)>("unlink")(path);
}

int remove(const char* path) {
  if (is_checkpoint(path) && is_the_one()) die();
  return real<int (*)(const char*)>("remove")(path);
}

}  // extern "C"
