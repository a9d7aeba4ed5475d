#include "launch/stop_signal.hpp"

#include <signal.h>

#include <array>
#include <atomic>

#include "core/error.hpp"

namespace coppice {
namespace {

// mpirun passes SIGUSR1 on to every rank, but ends the job on the other two.
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1};

// The only state of the program outside objects: a signal handler can reach nothing else.
std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a write in progress goes on
  for (const int number : kSignals) sigaction(number, &action, nullptr);
}

void on_first_signal(int) {
  stop_requested = true;
  set_handler(SIG_DFL);  // sigaction may be called here; the next signal then ends the process
}

}  // namespace

StopSignal::StopSignal() {
  stop_requested = false;
  set_handler(on_first_signal);
}

StopSignal::~StopSignal() { set_handler(SIG_DFL); }

bool StopSignal::requested() const { return stop_requested; }

}  // namespace coppice
