#pragma once
// One axis of all ranks over NCCL, for tests: with its watch, and the same ranks over MPI.
#include <memory>

#include "core/build_config.hpp"
#include "parallel/nccl/nccl_communicator.hpp"
#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

/// The emulated device has one device in every process.
inline Device device_of_this_rank() {
  return {DeviceKind::kCuda, build::kEmulatedDevice ? 0 : ranks_session().local_rank()};
}

template <class Axis = NcclCommunicator>
struct NcclAxisOf {
  template <class... Args>
  explicit NcclAxisOf(double seconds = 60, std::string name = "tensor", Args... args)
      : watch(std::make_shared<NcclWatch>(ranks_session(), WatchdogConfig{.seconds = seconds})),
        plain(ranks_session().split(0, "world", {.seconds = 60})),
        comm(std::make_unique<Axis>(ranks_session().split(0, name, {.seconds = 60}), name,
                                    device_of_this_rank(), watch, args...)) {}

  std::shared_ptr<NcclWatch> watch;
  std::unique_ptr<Communicator> plain;
  std::unique_ptr<Communicator> comm;
};
using NcclAxis = NcclAxisOf<>;

}  // namespace coppice::test
