#pragma once
// The wish to stop, from SIGINT, SIGTERM or SIGUSR1, as a value that long work asks between its
// steps.

namespace coppice {

/// While it lives, the first SIGINT, SIGTERM or SIGUSR1 only sets requested(); a second one ends
/// the process at once, as it would without this. At most one lives at a time: signals belong to
/// the process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
};

}  // namespace coppice
