#pragma once
// What may befall NCCL and no program can bring about: for tests.
#include <string>

#include "parallel/nccl/nccl_calls.hpp"

namespace coppice::nccl {

/// From now on the connection has failed, as one fails whose network does: `text` says why, and
/// `of_peers` whether another rank may be to blame.
void fail(Connection& connection, std::string text, bool of_peers);

}  // namespace coppice::nccl
