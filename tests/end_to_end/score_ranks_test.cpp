// `coppice score` under mpirun against one rank.
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

class ScoreOnRanks : public TinyRunOfRanks {
 protected:
  std::vector<nlohmann::json> score(int ranks, std::vector<std::string> set) const {
    std::vector<std::string> arguments = {"score",        "--checkpoint",   "ranks.h5",
                                          "--rollouts",   "rollouts.jsonl", "--out",
                                          "scores.jsonl", "--precision",    "f64"};
    set.push_back("threads_per_rank=1");
    for (const auto& assignment : set) {
      arguments.push_back("--set");
      arguments.push_back(assignment);
    }
    const auto outcome = run_program(arguments, dir_.path().string(), ranks);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    auto scores = json_lines(dir_ / "scores.jsonl");
    std::filesystem::remove(dir_ / "scores.jsonl");
    return scores;
  }
};

// All groups, in the file's order, by one rank; f64 to 1e-12 of the values' own size.
// Mutation seen red: figures of the other data ranks not gathered.
TEST_F(ScoreOnRanks, GivesTheScoresOfOneRankOnAnyGrid) {
  const auto expected = score(0, {});
  const std::vector<std::pair<int, std::vector<std::string>>> grids = {
      {3, {"parallel.data=3", "batching.max_rows_per_microbatch=40"}},
      {4, {"parallel.tensor=2", "parallel.context=2", "batching.sharing=REPEATED"}},
      {4, {"parallel.tensor=4", "parallel.sequence_parallel=false"}}};
  for (const auto& [ranks, set] : grids) {
    const auto scores = score(ranks, set);
    ASSERT_EQ(scores.size(), expected.size()) << set[0];
    for (std::size_t g = 0; g < scores.size(); ++g) {
      EXPECT_EQ(scores[g]["group"], expected[g]["group"]) << set[0];
      const auto &responses = scores[g]["responses"], &wanted = expected[g]["responses"];
      ASSERT_EQ(responses.size(), wanted.size()) << set[0];
      for (std::size_t r = 0; r < responses.size(); ++r)
        for (const char* field : {"logprobs", "entropies"}) {
          const auto got = responses[r].at(field).get<std::vector<double>>();
          const auto want = wanted[r].at(field).get<std::vector<double>>();
          ASSERT_EQ(got.size(), want.size()) << set[0];
          for (std::size_t t = 0; t < got.size(); ++t)
            EXPECT_NEAR(got[t], want[t], 1e-12 * std::abs(want[t])) << set[0];
        }
    }
  }
}

}  // namespace
}  // namespace coppice::test
