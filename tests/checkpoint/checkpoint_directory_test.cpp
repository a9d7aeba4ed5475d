#include "checkpoint/checkpoint_directory.hpp"

#include <gmock/gmock.h>

#include "checkpoint/example_state.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::TemporaryDirectory;
using test::TestContext;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void save(const TemporaryDirectory& directory, TestContext& context, std::int64_t step) {
  auto header = test::example_header();
  header.step = step;
  save_checkpoint(directory / checkpoint_file_name(step), header,
                  test::example_state(context, DType::kF32).list);
}

void damage(const std::filesystem::path& path, std::size_t from_end) {
  std::string bytes = test::read_file(path);
  bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 4);
  test::write_file(path, bytes);
}

TEST(CheckpointDirectory, ListsByStep) {
  const TemporaryDirectory directory;
  for (const char* name : {"step_00000010.h5", "step_00000009.h5", "step_123456789.h5", "step_1.h5",
                           ".step_00000011.h5.12-0.coppice-part", "step_00000012.h5.bak", "x.h5"}) {
    test::write_file(directory / name, "");
  }
  EXPECT_THAT(list_checkpoints(directory.path()),
              ElementsAre(directory / "step_00000009.h5", directory / "step_00000010.h5",
                          directory / "step_123456789.h5"));
  EXPECT_THAT(list_checkpoints(directory / "missing"), IsEmpty());
}

// As a run that goes on does it: from the newest to the oldest until one loads.
struct Found {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> passed_over;
};
Found newest_whole(const TemporaryDirectory& directory) {
  TestContext context;
  CheckpointSearch search(directory.path());
  Found found;
  while ((found.reader = search.next())) {
    auto loaded = test::example_state(context, DType::kF32, false);
    try {
      found.reader->read(loaded.list);
      break;
    } catch (const DamagedCheckpoint& damage) {
      EXPECT_TRUE(test::spoilt(loaded));
      search.pass_over(damage);
    }
  }
  found.passed_over = search.take_passed_over();
  return found;
}

TEST(CheckpointDirectory, GoesOnFromTheNewestThatIsWhole) {
  const TemporaryDirectory directory;
  TestContext context;
  EXPECT_FALSE(newest_whole(directory).reader.has_value());
  for (std::int64_t step : {1, 2, 3}) save(directory, context, step);
  EXPECT_EQ(newest_whole(directory).reader->header().step, 3);
  const std::string whole = test::read_file(directory / checkpoint_file_name(3));
  test::write_file(directory / checkpoint_file_name(3), whole.substr(0, whole.size() / 2));
  test::write_file(directory / checkpoint_file_name(4), "");
  const auto newest = newest_whole(directory);
  ASSERT_TRUE(newest.reader.has_value());
  EXPECT_EQ(newest.reader->header().step, 2);
  EXPECT_THAT(newest.passed_over,
              ElementsAre(HasSubstr("step_00000004.h5"), HasSubstr("step_00000003.h5")));
}

TEST(CheckpointDirectory, PassesOverAFlippedBitInAnyWeight) {
  const TemporaryDirectory directory;
  TestContext context;
  for (std::int64_t step : {1, 2}) save(directory, context, step);
  // Some byte of the raw data: found by writing a checkpoint that differs in one weight only.
  const std::string path = directory / checkpoint_file_name(2);
  const std::string bytes = test::read_file(path);
  auto other = test::example_state(context, DType::kF32);
  other.tensors[0].view().data<float>()[3] += 1.0f;
  auto header = test::example_header();
  header.step = 2;
  save_checkpoint(directory / "other.h5", header, other.list);
  const std::string changed = test::read_file(directory / "other.h5");
  ASSERT_EQ(bytes.size(), changed.size());
  const auto at =
      static_cast<std::size_t>(std::ranges::mismatch(bytes, changed).in1 - bytes.begin());
  damage(path, bytes.size() - at);
  const auto newest = newest_whole(directory);
  ASSERT_TRUE(newest.reader.has_value());
  EXPECT_EQ(newest.reader->header().step, 1);
  EXPECT_THAT(newest.passed_over, ElementsAre(HasSubstr("does not have its checksum")));
}

TEST(CheckpointDirectory, KeepsTheNewestAndRemovesLeftovers) {
  const TemporaryDirectory directory;
  TestContext context;
  for (std::int64_t step : {1, 2, 30}) save(directory, context, step);
  test::write_file(directory / ".step_00000031.h5.1-0.coppice-part", "torn");
  test::write_file(directory / "mine.h5", "");
  remove_old_checkpoints(directory.path(), 0, 30);
  EXPECT_EQ(directory.names().size(), 4u);
  remove_old_checkpoints(directory.path(), 2, 30);
  EXPECT_THAT(directory.names(), ElementsAre("mine.h5", "step_00000002.h5", "step_00000030.h5"));
}

// A run that passed over damaged checkpoints goes on below them. Red when these counted: the
// checkpoint just saved was removed, and nothing whole was left.
TEST(CheckpointDirectory, NeverRemovesTheNewestForThoseThatWerePassedOver) {
  const TemporaryDirectory directory;
  TestContext context;
  for (std::int64_t step : {1, 2, 3}) save(directory, context, step);
  for (std::int64_t step : {4, 9})
    test::write_file(directory / checkpoint_file_name(step), "damaged");
  remove_old_checkpoints(directory.path(), 2, 3);
  EXPECT_THAT(directory.names(), ElementsAre("step_00000002.h5", "step_00000003.h5",
                                             "step_00000004.h5", "step_00000009.h5"));
  remove_old_checkpoints(directory.path(), 1, 3);
  EXPECT_THAT(directory.names(),
              ElementsAre("step_00000003.h5", "step_00000004.h5", "step_00000009.h5"));
}

}  // namespace
}  // namespace coppice
