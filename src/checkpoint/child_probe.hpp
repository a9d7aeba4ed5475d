#pragma once
// Trying something dangerous in a child process first. HDF5 1.10 can crash or loop on damaged files
// whose metadata carry no checksums (all that were not written with the bounds that we write with).
#include <cstdint>
#include <functional>

namespace coppice {

/// Runs `body` in a forked child with its output thrown away and at most so many seconds of
/// processor time. False if the child crashed or ran out of them; an exception in it counts as
/// survival, since the caller will meet it again. True where no child can be made.
///
/// Parallel  only the calling thread exists in the child; `body` must not wait for others
bool survives_in_child(const std::function<void()>& body, std::int64_t cpu_seconds);

}  // namespace coppice
