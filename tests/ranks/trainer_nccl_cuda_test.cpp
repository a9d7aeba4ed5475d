// A whole GRPO training step in bf16 over NCCL, each rank with a device of its own, along every
// axis and two at once: the same bits as through the host and MPI, which is held against a plain
// model in double (ranks/trainer_cuda_test.cpp), with collectives under compute and without.
#include <gmock/gmock.h>

#include "ranks/trained_step.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using namespace test;

constexpr auto kSequence = SequenceParallel::kYes;

/// Of the ranks there are, every grid along one axis or two, of at most two ranks each.
std::vector<GridCase> grids() {
  std::vector<GridCase> grids;
  for (const GridSizes& sizes :
       {GridSizes{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}}) {
    if (sizes.ranks() != ranks_session().size()) continue;
    grids.push_back({sizes});
    if (sizes.tensor == 2) grids.push_back({sizes, kSequence});
  }
  return grids;
}

/// What a step starts and awaits (docs/decisions/0009-collectives-under-compute.md): rows of a
/// linear's input and the sums of its gradient, keys and values of shared rows, sums of gradients
/// and the updated values.
std::set<std::string> under_compute(const GridCase& grid) {
  std::set<std::string> started;
  if (grid.sequence_parallel == kSequence)
    started.insert({"tensor all_gather", "tensor reduce_scatter"});
  else if (grid.sizes.tensor > 1)
    started.insert("tensor all_reduce");
  if (grid.sizes.context > 1) started.insert("context all_gather");
  if (grid.sizes.context * grid.sizes.data > 1)
    started.insert({"replicas reduce_scatter", "replicas all_gather"});
  return started;
}

// Sums of two are the same in any order, and the emulated NCCL adds in the ranks' order. Seen red:
// the collective's stream not waiting for its inputs; the caller's not waiting for results; every
// uneven shard gathered to the first place, and summed from it.
TEST(TrainerOverNcclCuda, GivesTheSameBitsAsThroughTheHost) {
  int which = 0;
  for (const GridCase& grid : grids()) {
    SCOPED_TRACE(name_of(grid));
    const TinyCase tiny = step_cases()[static_cast<std::size_t>(which++) % 3];
    const auto groups = recorded_groups(tiny, 0);
    const Trained staged = train(grid, tiny, groups, GridDevice::Axes::kStaged);
    set_device_schedule(which + 3 * ranks_session().rank());  // another one for each rank
    const Trained direct = train(grid, tiny, groups, GridDevice::Axes::kNccl);
    set_device_schedule(which + 5 * ranks_session().rank());
    const Trained blocking = train(grid, tiny, groups, GridDevice::Axes::kNccl, false);
    set_device_schedule(0);
    for (const Trained* trained : {&direct, &blocking}) {
      EXPECT_EQ(trained->step.loss, staged.step.loss);
      EXPECT_EQ(trained->step.gradients, staged.step.gradients);
      EXPECT_EQ(trained->after, staged.after);
    }
    EXPECT_EQ(direct.started, under_compute(grid));
    EXPECT_THAT(blocking.started, testing::IsEmpty());
  }
}

}  // namespace
}  // namespace coppice
