// What the program says to a command line, before any work: help, version, usage errors.
#include <gmock/gmock.h>

#include "end_to_end/program.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

const std::vector<std::string> kSubcommands = {"import", "export", "init", "inspect",
                                               "score",  "train",  "plan", "study"};

TEST(CommandLine, HelpNamesEverySubcommand) {
  const auto outcome = run_program({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  for (const auto& name : kSubcommands) EXPECT_THAT(outcome.out, HasSubstr("\n  " + name + " "));
}

TEST(CommandLine, EverySubcommandHasHelp) {
  for (const auto& name : kSubcommands) {
    const auto outcome = run_program({name, "--help"});
    EXPECT_EQ(outcome.status, 0) << name;
    EXPECT_THAT(outcome.out, HasSubstr("Usage: coppice " + name)) << name;
    EXPECT_THAT(outcome.err, IsEmpty());
  }
}

TEST(CommandLine, VersionIsOneLine) {
  const auto outcome = run_program({"--version"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith("coppice "));
}

TEST(CommandLine, WithoutOrWithAnUnknownSubcommandIsRefused) {
  EXPECT_EQ(run_program({}).status, 2);
  EXPECT_THAT(run_program({}).problems(), ElementsAre(HasSubstr("no subcommand is given.")));
  const auto unknown = run_program({"tain"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.problems(), ElementsAre(HasSubstr("tain is not a subcommand.")));
}

TEST(CommandLine, ListsEveryProblemAtOnce) {
  const auto outcome = run_program({"score", "--sharing", "shared", "--temperature", "hot", "--bad",
                                    "--out", "a", "--out", "b"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.problems(),
              ElementsAre(HasSubstr("--out is given 2 times."),
                          HasSubstr("--sharing shared is not known. Choose one of: grouped"),
                          HasSubstr("--temperature hot is not a number."),
                          HasSubstr("--checkpoint is missing"), HasSubstr("--rollouts is missing"),
                          HasSubstr("--bad is not an argument of coppice score")));
}

// Seen red: the two dashes were themselves an unknown argument.
TEST(CommandLine, EndsItsOptionsWithTwoDashes) {
  const auto outcome = run_program({"inspect", "--", "none.h5"});
  EXPECT_THAT(outcome.problems(), ElementsAre(HasSubstr("none.h5: there is no file")));
}

}  // namespace
}  // namespace coppice::test
