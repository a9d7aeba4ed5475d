#include "checkpoint/pending_file.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(PendingFile, AppearsOnlyWhenCommitted) {
  const TemporaryDirectory directory;
  write_file(directory / "a", "old");
  PendingFile file(directory / "a");
  write_at(file.descriptor(), 0, "new!", 4, file.target());
  EXPECT_EQ(read_file(directory / "a"), "old");
  file.commit();
  EXPECT_EQ(read_file(directory / "a"), "new!");
  EXPECT_THAT(directory.names(), ElementsAre("a"));
}

TEST(PendingFile, LeavesNothingWhenGivenUp) {
  const TemporaryDirectory directory;
  write_file(directory / "a", "old");
  { PendingFile file(directory / "a"); }
  EXPECT_EQ(read_file(directory / "a"), "old");
  EXPECT_THAT(directory.names(), ElementsAre("a"));
}

TEST(PendingFile, SaysWhichPathCannotBeMade) {
  const TemporaryDirectory directory;
  try {
    PendingFile file(directory / "missing" / "a");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing/a"));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
}

TEST(PendingDirectory, AppearsOnlyWhenCommitted) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "model");  // an empty one may be there
  PendingDirectory pending((directory / "model/").string());
  write_file(pending.temporary() / "config.json", "{}");
  EXPECT_TRUE(std::filesystem::is_empty(directory / "model"));
  pending.commit();
  EXPECT_EQ(read_file(directory / "model" / "config.json"), "{}");
  EXPECT_THAT(directory.names(), ElementsAre("model"));
}

TEST(PendingDirectory, NeverReplacesAFullOne) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "model");
  write_file(directory / "model" / "mine", "x");
  {
    PendingDirectory pending(directory / "model");
    EXPECT_THROW(pending.commit(), IoError);
  }
  EXPECT_THAT(directory.names(), ElementsAre("model"));
  EXPECT_EQ(read_file(directory / "model" / "mine"), "x");
}

// A child is killed while it writes; its files are removed, those of the living are not.
TEST(Leftovers, OfDeadRunsAreRemovedAndOfLivingOnesKept) {
  const TemporaryDirectory directory;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    PendingFile file(directory / "a");
    PendingDirectory tree(directory / "b");
    write_file(tree.temporary() / "inside", "x");
    [[maybe_unused]] auto n = write(ready[1], "1", 1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(directory.names().size(), 2u);
  remove_leftovers(directory.path());
  EXPECT_EQ(directory.names().size(), 2u) << "the writer lives";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  write_file(directory / ".mine.part", "not ours");
  remove_leftovers(directory.path());
  EXPECT_THAT(directory.names(), ElementsAre(".mine.part"));
}

// Seen red: opening it waited for whoever writes into it.
TEST(Leftovers, ThatArePipesKeepNobodyWaiting) {
  const TemporaryDirectory directory;
  ASSERT_EQ(mkfifo((directory / ".pipe.1-0.coppice-part").c_str(), 0600), 0);
  remove_leftovers(directory.path());
  EXPECT_TRUE(directory.names().empty());
}

TEST(Leftovers, OfNoDirectoryAreNone) {
  const TemporaryDirectory directory;
  EXPECT_NO_THROW(remove_leftovers(directory / "missing"));
  EXPECT_THAT(directory.names(), IsEmpty());
}

}  // namespace
}  // namespace coppice
