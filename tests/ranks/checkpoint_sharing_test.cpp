// The ranks that read a file share the work: each value is read once, checksums are summed by those
// who hold the values, and damage is found whatever they hold.
// Seen red: every rank reads the whole file.
#include <gmock/gmock.h>

#include <fstream>

#include "checkpoint/example_state.hpp"
#include "parallel/exchange.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "ranks/rank_state.hpp"
#include "ranks/ranks_session.hpp"
#include "ranks/shared_directory.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::example_header;
using test::RankState;
using test::read_file;
using test::write_file;
using testing::Each;
using testing::HasSubstr;

class CheckpointSharing : public testing::Test {
 protected:
  // One rank changes a file while the others wait.
  template <class Body>
  void on_rank_zero(const Body& body) {
    directory_.wait_for_all();
    if (world_->rank() == 0) body();
    directory_.wait_for_all();
  }

  std::unique_ptr<Communicator> world_ = test::ranks_session().split(0, "world", {.seconds = 60});
  test::SharedDirectory directory_{*world_};
  test::TestContext context_{1};
};

// Bytes that this process has asked the system to read so far.
std::int64_t bytes_read() {
  std::ifstream stream("/proc/self/io");
  std::string label;
  std::int64_t bytes = 0;
  stream >> label >> bytes;  // "rchar: N"
  return bytes;
}

TEST_F(CheckpointSharing, TheRanksShareTheComparingOfChecksums) {
  const Shape shape{4096, 2048};  // 32 MiB
  RankState state;
  const Shard shard = test::part_along(shape, 0, world_->rank(), world_->size());
  state.add("/parameters/w", shard, context_.filled(DType::kF32, shard.local_shape, 0.5));
  save_checkpoint(directory_ / "a.h5", example_header(), state.list, false, *world_);
  CheckpointReader reader(directory_ / "a.h5", *world_);
  const std::int64_t before = bytes_read();
  reader.verify();
  const std::int64_t block = std::int64_t{4} << 20;
  EXPECT_LE(bytes_read() - before, 4 * shape.numel() / world_->size() + 2 * block);
}

// Seen red: all that is wanted compared beforehand.
TEST_F(CheckpointSharing, EveryValueIsReadOnce) {
  const Shape shape{4096, 2048};  // 32 MiB
  RankState state;
  const Shard shard = test::part_along(shape, 0, world_->rank(), world_->size());
  state.add("/parameters/w", shard, context_.filled(DType::kF32, shard.local_shape, 0.5));
  save_checkpoint(directory_ / "a.h5", example_header(), state.list, false, *world_);
  RankState loaded;
  loaded.add("/parameters/w", shard, context_.zeros(DType::kF32, shard.local_shape));
  const CheckpointReader reader(directory_ / "a.h5", *world_);
  const std::int64_t before = bytes_read();
  reader.read(loaded.list);
  EXPECT_LE(bytes_read() - before, 4 * shard.local_shape.numel() + (1 << 20));
  EXPECT_TRUE(bit_equal(loaded.tensors[0], state.tensors[0]));
}

// Ranks hold copies of a tensor, as data ranks do, or want less than all of it: damage anywhere in
// it is found. Seen red: copies added to the sum as often as there are (whole files refused); parts
// taken without a look at the rest.
TEST_F(CheckpointSharing, DamageIsFoundWhateverIsWanted) {
  const Shape shape{37, 29};
  Tensor whole = context_.random(DType::kF32, shape, "w");
  on_rank_zero([&] {
    const StateTensor all[] = {{"/parameters/w", Shard::whole(shape), whole}};
    save_checkpoint(directory_ / "a.h5", example_header(), all);
  });
  const std::string bytes = read_file(directory_ / "a.h5");
  const auto at =
      bytes.find(std::string(reinterpret_cast<const char*>(whole.view().bytes()), 4 * 29));
  ASSERT_NE(at, std::string::npos);
  const int half = world_->size() / 2;
  const std::vector<Shard> wanted_by_rank = {
      Shard::whole(shape),                                           // copies of all
      test::part_along(shape, 1, world_->rank() < half ? 0 : 1, 2),  // copies of halves, or one
      Shard::along(shape, 0, 0, 3),                                  // less than all
      Shard::along(shape, 1, world_->rank(), 29 - world_->size()),   // overlapping
      test::part_along(shape, 0, world_->rank(), world_->size())};
  for (const Shard& shard : wanted_by_rank) {
    const auto load = [&] {
      RankState state;
      state.add("/parameters/w", shard, context_.filled(DType::kF32, shard.local_shape, 1.0));
      const CheckpointReader reader(directory_ / "a.h5", *world_);
      std::string told;
      try {
        reader.read(state.list);
        EXPECT_TRUE(bit_equal(state.tensors[0], test::cut_out(context_, whole, shard)));
      } catch (const DamagedCheckpoint& damage) {
        told = damage.what();
        EXPECT_TRUE(test::untouched(state) || test::spoilt(state));
      }
      EXPECT_THAT(all_gather_texts(*world_, told), Each(told));
      return told;
    };
    EXPECT_EQ(load(), "");
    for (const std::int64_t element : {0, 28, 29 * 18 + 14, 29 * 37 - 1}) {
      const auto put = [&](std::string text) {
        on_rank_zero([&] { write_file(directory_ / "a.h5", text); });
      };
      std::string damaged = bytes;
      damaged[at + static_cast<std::size_t>(4 * element)] ^= 1;
      put(damaged);
      EXPECT_THAT(load(), HasSubstr("/parameters/w does not have its checksum")) << element;
      put(bytes);
    }
  }
}

}  // namespace
}  // namespace coppice
