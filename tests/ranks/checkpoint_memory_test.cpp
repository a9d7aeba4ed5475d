// What saving and loading need of memory above the state itself: at most one tensor's shard, or two
// of the blocks that values pass through where that is more. The process's own high-water mark is
// asked, so that what the HDF5 library takes counts too.
// Seen red: rectangles converted whole and kept until the save ends.
#include <gmock/gmock.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/example_state.hpp"
#include "checkpoint/layout.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "ranks/rank_state.hpp"
#include "ranks/ranks_session.hpp"
#include "ranks/shared_directory.hpp"

namespace coppice {
namespace {

using test::RankState;

// kB of this process, by the name that the system gives them.
std::int64_t resident(const std::string& wanted) {
  std::ifstream stream("/proc/self/status");
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(wanted + ":")) return std::stoll(line.substr(wanted.size() + 1));
  return -1;
}

// How far `body` goes above what is resident when it begins, in bytes.
template <class Body>
std::int64_t peak_above(const Body& body) {
  malloc_trim(0);  // freed blocks of what was before would hide what is taken now
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark begins anew
  const std::int64_t before = resident("VmRSS");
  body();
  return 1024 * (resident("VmHWM") - before);
}

class CheckpointMemory : public testing::Test {
 protected:
  // Two tensors of 32 MiB in f32, one cut by rows and one by columns.
  RankState state(DType dtype, double value) {
    const Shape shape{2048, 4096};
    RankState state;
    for (const int axis : {0, 1}) {
      const Shard shard = test::part_along(shape, axis, world_->rank(), world_->size());
      state.add("/parameters/w" + std::to_string(axis), shard,
                context_.filled(dtype, shard.local_shape, value));
    }
    return state;
  }

  std::unique_ptr<Communicator> world_ = test::ranks_session().split(0, "world", {.seconds = 60});
  test::SharedDirectory directory_{*world_};
  test::TestContext context_{1};
};

// f64 goes to the file as f32 and comes back: both ways have to convert.
TEST_F(CheckpointMemory, OfSavingAndLoadingIsAtMostOneShard) {
  const std::int64_t shard = std::int64_t{32 << 20} / world_->size();
  constexpr std::int64_t kLibraries = 2 << 20;  // HDF5's tables and cache, MPI's buffers
  const std::int64_t most = std::max(shard, 2 * layout::kBlockBytes) + kLibraries;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const RankState saved = state(dtype, 0.75);
    const std::int64_t save = peak_above([&] {
      save_checkpoint(directory_ / "a.h5", test::example_header(), saved.list, false, *world_);
    });
    const RankState loaded = state(dtype, 0.0);
    const std::int64_t load =
        peak_above([&] { CheckpointReader(directory_ / "a.h5", *world_).read(loaded.list); });
    EXPECT_LE(save, most);
    EXPECT_LE(load, most);
    for (std::size_t i = 0; i < saved.tensors.size(); ++i)
      EXPECT_TRUE(test::bit_equal(saved.tensors[i], loaded.tensors[i]));
    if (world_->rank() == 0)
      std::printf("%d ranks, %s: save %.1f MiB, load %.1f MiB above the state; a shard has %.1f\n",
                  world_->size(), std::string(name_of(dtype)).c_str(),
                  static_cast<double>(save) / (1 << 20), static_cast<double>(load) / (1 << 20),
                  static_cast<double>(shard) / (1 << 20));
  }
}

}  // namespace
}  // namespace coppice
