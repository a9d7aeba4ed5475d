#pragma once
// The largest block that a test program has asked for, so that readers of damaged files can be held
// to what a file can be worth. Only programs that list allocation_watch.cpp have it.
#include <cstddef>

namespace coppice::test {

/// Bytes of the largest block that `new` gave since the last call of forget_allocations().
std::size_t largest_allocation();
void forget_allocations();

}  // namespace coppice::test
