#include "core/regular_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Red where a name was opened before its kind was known: a pipe that nobody writes into waits.
TEST(RegularFile, TellsFilesFromWhateverElseHasAName) {
  const TemporaryDirectory directory;
  test::write_file(directory / "file", "x");
  std::filesystem::create_symlink("file", directory / "link");
  std::filesystem::create_symlink("nowhere", directory / "dangling");
  std::filesystem::create_symlink("circle", directory / "circle");
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(why_unreadable(directory / "file"), IsEmpty());
  EXPECT_THAT(why_unreadable(directory / "link"), IsEmpty());
  EXPECT_THAT(why_unreadable(directory / "absent"), HasSubstr("No such file"));
  EXPECT_THAT(why_unreadable(directory / "dangling"), HasSubstr("No such file"));
  EXPECT_THAT(why_unreadable(directory / "circle"), HasSubstr("symbolic links"));
  EXPECT_THAT(why_unreadable(directory / "pipe"), HasSubstr("pipe"));
  EXPECT_THAT(why_unreadable("/dev/zero"), HasSubstr("device"));
  EXPECT_THAT(why_unreadable(directory.path()), HasSubstr("directory"));
  EXPECT_THAT(why_unreadable(directory / "file/below"), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace coppice
