#include "launch/run_directory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

// Directories that were missing; gone again unless they are kept.
class NewDirectories {
 public:
  NewDirectories() = default;
  ~NewDirectories() {
    std::error_code ignored;  // a destructor has nobody to tell; one that is not empty stays
    for (const auto& path : deepest_first_) fs::remove(path, ignored);
  }
  NewDirectories(const NewDirectories&) = delete;
  NewDirectories& operator=(const NewDirectories&) = delete;

  // Name by name as written, like mkdir -p: "a/../b" makes a too.
  void make(const fs::path& directory) {
    fs::path path;
    std::error_code unseen;
    for (const auto& name : fs::absolute(directory)) {
      path /= name;
      if (!fs::exists(path, unseen)) make_one(path);
    }
  }
  void keep() { deepest_first_.clear(); }

 private:
  void make_one(const fs::path& path) {
    std::error_code error;
    if (fs::create_directory(path, error)) deepest_first_.insert(deepest_first_.begin(), path);
    if (error)
      throw ConfigError({fmt::format("run_dir: {} cannot be made: {}. Give another run_dir.",
                                     path.string(), error.message())});
  }

  std::vector<fs::path> deepest_first_;
};

// Everything that the run writes to, so that no step is done in vain.
void check_writable(const fs::path& run_dir) {
  Problems problems;
  for (const char* name : {"", "checkpoints", "metrics.jsonl"}) {
    const fs::path path = *name == '\0' ? run_dir : run_dir / name;
    if (access(path.c_str(), W_OK) == 0 || errno == ENOENT) continue;
    problems.add("run_dir: {} cannot be written: {}. Give another run_dir.", path.string(),
                 std::strerror(errno));
  }
  problems.throw_if_any<ConfigError>();
}

// What forbids this rank to write into the file, or 0.
int error_of_opening(const fs::path& file) {
  // Opening the directories above makes a network file system ask anew for what they hold.
  fs::path above;
  for (const auto& name : fs::absolute(file).parent_path()) {
    above /= name;
    const int directory = open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) close(directory);
  }
  const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return errno;
  close(descriptor);
  return 0;
}

void check_seen(const fs::path& run_dir, const fs::path& file, int rank, const std::string& host,
                double patience) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(patience);
  int error = error_of_opening(file);
  while (error == ENOENT && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    error = error_of_opening(file);
  }
  if (error == 0) return;
  throw ConfigError({fmt::format(
      "run_dir: rank {} ({}) cannot open the file that rank 0 has made in {}: {} (each rank writes "
      "its part of a checkpoint there). Give a directory that all ranks share and may write to.",
      rank, host, run_dir.string(), std::strerror(error))});
}

}  // namespace

double patience_for_run_directory(double watchdog_seconds) {
  constexpr double kMost = 30;  // for which NFS holds what it knows of a directory
  return std::min(kMost, watchdog_seconds / 2);
}

std::optional<RunLock> open_run_directory(const fs::path& run_dir, const std::string& config_text,
                                          std::optional<RunLock> lock, Communicator& world,
                                          const std::string& host, double patience) {
  const bool is_first = world.rank() == 0;
  NewDirectories made;
  std::optional<PendingFile> config;  // rank 0's
  std::string temporary;
  succeed_together(world, [&] {
    if (!is_first) return;
    made.make(run_dir);
    if (!lock) lock.emplace(run_dir);
    check_writable(run_dir);
    remove_leftovers(run_dir);
    config.emplace(run_dir / "config.textproto");
    write_at(config->descriptor(), 0, config_text.data(), std::ssize(config_text),
             config->target());
    temporary = config->temporary().filename().string();
  });
  if (world.size() > 1) {
    temporary = broadcast_text(world, temporary);
    succeed_together(
        world, [&] { check_seen(run_dir, run_dir / temporary, world.rank(), host, patience); });
  }
  succeed_together(world, [&] {
    if (is_first) config->commit();
  });
  made.keep();
  return lock;
}

}  // namespace coppice
