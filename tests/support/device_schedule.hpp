#pragma once
// Lets a test run an op again under another order of threads, blocks and streams. A real device
// picks its own order every time; the emulated one is told.

namespace coppice::test {

/// Another schedule for every `run`; 0 is the usual one.
void set_device_schedule(int run);

}  // namespace coppice::test
