// How ranks and devices of a machine must match, in a build with a CUDA backend: a config read for
// jobs of several sizes. Expected messages are written by hand from the interface.
#include <gmock/gmock.h>

#include "launch/run_config.hpp"
#include "support/damaged_file.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;

using Axes = GridDevice::Axes;

class DevicesOfRanksOnCuda : public testing::Test {
 protected:
  DevicesOfRanksOnCuda() {
    write_file(dir_ / "model.h5", "");
    write_file(dir_ / "r.jsonl", "");
    write_file(dir_ / "run.textproto",
               "run_dir: \"runs/x\"\nmodel { checkpoint: \"" + (dir_ / "model.h5").string() +
                   "\" }\ndata { rollouts: \"" + (dir_ / "r.jsonl").string() +
                   "\" groups_per_step: 8 }\ndevice: CUDA\n");
  }
  RunConfig load(int ranks, int local_ranks, int devices, std::vector<std::string> set = {},
                 RunConfigUse use = RunConfigUse::kTrain) {
    set.push_back("parallel.data=" + std::to_string(ranks));
    return load_run_config(dir_ / "run.textproto", set, use,
                           {.ranks = ranks, .cuda_devices = devices, .local_ranks = local_ranks});
  }
  std::vector<std::string> problems(int ranks, int local_ranks, int devices) {
    try {
      load(ranks, local_ranks, devices);
    } catch (const ConfigError& error) {
      return error.problems();
    }
    return {};
  }
  TemporaryDirectory dir_;
};

TEST_F(DevicesOfRanksOnCuda, EachRankNeedsOneForNccl) {
  EXPECT_EQ(load(1, 1, 1).axes, Axes::kNccl);
  EXPECT_EQ(load(8, 4, 4).axes, Axes::kNccl);
  EXPECT_EQ(load(2, 2, 8).axes, Axes::kNccl);
  EXPECT_THAT(problems(2, 2, 1),
              ElementsAre(EndsWith("parallel.communicator: 2 ranks on this machine would share 1 "
                                   "CUDA device (NCCL takes one rank a device). Start 1 here, or "
                                   "set STAGED (through the host's memory and MPI, which is "
                                   "slow).")));
  EXPECT_THAT(problems(8, 4, 3),
              ElementsAre(EndsWith("parallel.communicator: 4 ranks on this machine would share 3 "
                                   "CUDA devices (NCCL takes one rank a device). Start 3 here, or "
                                   "set STAGED (through the host's memory and MPI, which is "
                                   "slow).")));
}

TEST_F(DevicesOfRanksOnCuda, SeveralMayShareOneWhereStagingIsAskedFor) {
  EXPECT_EQ(load(4, 4, 1, {"parallel.communicator=STAGED"}).axes, Axes::kStaged);
}

// A plan is for machines that are not here.
TEST_F(DevicesOfRanksOnCuda, APlanAsksForNone) {
  EXPECT_EQ(load(4, 1, 0, {}, RunConfigUse::kPlan).axes, Axes::kNccl);
}

}  // namespace
}  // namespace coppice::test
