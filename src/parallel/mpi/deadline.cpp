#include "parallel/mpi/deadline.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

namespace coppice {

Deadline::Deadline(std::string work, double seconds, std::function<void(const std::string&)> tell)
    : thread_([this, work = std::move(work), seconds, tell = std::move(tell)] {
        std::unique_lock lock(mutex_);
        if (change_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [this] { return is_met_; }))
          return;
        if (tell)
          tell(
              fmt::format("{} has not ended in {:.0f} s (a rank has not come to it, so it is "
                          "stalled or gone). Look at what the other ranks do.",
                          work, seconds));
        std::_Exit(1);
      }) {}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    is_met_ = true;
  }
  change_.notify_one();
  thread_.join();
}

}  // namespace coppice
