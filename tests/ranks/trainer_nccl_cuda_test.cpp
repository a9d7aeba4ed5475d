// A whole GRPO training step in bf16 over NCCL, each rank with a device of its own, along every
// axis and two at once: the same bits as through the host and MPI, which is held against a plain
// model in double (ranks/trainer_cuda_test.cpp).
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
    set_device_schedule(0);
    EXPECT_EQ(direct.step.loss, staged.step.loss);
    EXPECT_EQ(direct.step.gradients, staged.step.gradients);
    EXPECT_EQ(direct.after, staged.after);
  }
}

}  // namespace
}  // namespace coppice
