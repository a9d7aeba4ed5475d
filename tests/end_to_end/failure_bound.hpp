#pragma once
// How long a job may take to be gone once a rank has failed.

namespace coppice::test {

/// Seconds within which a job is gone whose watchdog waits so many: a failing rank waits 1 s for
/// others that fail alike, mpirun takes up to 3 s, and a busy machine as much again.
constexpr double kGraceSeconds = 1, kMpirunSeconds = 3;
constexpr double bound(double seconds) { return 2 * (seconds + kGraceSeconds + kMpirunSeconds); }

}  // namespace coppice::test
