#include "checkpoint/child_probe.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace coppice {

bool survives_in_child(const std::function<void()>& body, std::int64_t cpu_seconds) {
  const pid_t child = fork();
  if (child < 0) return true;
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    const auto seconds = static_cast<rlim_t>(cpu_seconds);
    const rlimit cpu{seconds, seconds}, no_core{0, 0};
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &no_core);
    try {
      body();
    } catch (...) {  // the caller meets it again, in its own process
    }
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return true;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace coppice
