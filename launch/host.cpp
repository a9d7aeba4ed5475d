#include "launch/host.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace coppice {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

int available_cores() {
  // The affinity mask, not the machine's count: containers and job schedulers narrow it.
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::string machine_description() {
  std::string processor = "a processor without a name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (const auto colon = line.find(": ");
        line.rfind("model name", 0) == 0 && colon != line.npos) {
      processor = line.substr(colon + 2);
      break;
    }
  const int cores = available_cores();
  return std::to_string(cores) + (cores == 1 ? " core of " : " cores of ") + processor;
}

std::int64_t memory_limit_bytes() {
  const std::int64_t machine = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::int64_t group = 0;
  std::ifstream file("/sys/fs/cgroup/memory.max");  // "max" where there is no limit
  return file >> group && group > 0 ? std::min(machine, group) : machine;
}

bool shows_progress_bar() { return isatty(STDERR_FILENO) == 1; }

int terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    // open() takes the lowest free number: this one, since those below are open by now.
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", O_RDWR) != stream) return;
}

}  // namespace coppice
