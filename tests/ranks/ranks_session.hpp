#pragma once
// The MPI session of a test program that runs on several ranks.
#include "core/build_config.hpp"
#include "core/device.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "parallel/staged_communicator.hpp"

namespace coppice::test {

MpiSession& ranks_session();

/// All ranks, for tensors of `device` and of the host.
inline std::unique_ptr<Communicator> world_of(const Device& device, std::string axis = "world") {
  auto comm = ranks_session().split(0, std::move(axis), {.seconds = 60});
  if constexpr (build::kWithCuda) {
    if (device.kind == DeviceKind::kCuda) {
      return comm->size() == 1 ? make_self_communicator()
                               : make_staged_communicator(std::move(comm));
    }
  }
  return comm;
}

}  // namespace coppice::test
