// `coppice score` through the program. Its values are checked against transformers in golden_test.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class Score : public TinyRun {
 protected:
  std::vector<std::string> arguments(const std::string& out,
                                     const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"score",          "--checkpoint", "model.h5", "--rollouts",
                                    "rollouts.jsonl", "--out",        out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<nlohmann::json> score(const std::vector<std::string>& more,
                                    const std::string& out = "scores.jsonl") const {
    const auto outcome = coppice(arguments(out, more));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json_lines(dir_ / out);
  }
  static Tensors logprobs(const std::vector<nlohmann::json>& groups,
                          const char* field = "logprobs") {
    Tensors all;
    for (const auto& group : groups)
      for (const auto& response : group.at("responses"))
        all[std::to_string(all.size())] = response.at(field).get<std::vector<double>>();
    return all;
  }
};

TEST_F(Score, GivesOneValuePerResponseTokenInTheFilesOrder) {
  const auto groups = json_lines(dir_ / "rollouts.jsonl"), scores = score({});
  ASSERT_EQ(scores.size(), groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    EXPECT_EQ(scores[g]["group"], groups[g]["group"]);
    ASSERT_EQ(scores[g]["responses"].size(), groups[g]["responses"].size());
    for (std::size_t r = 0; r < groups[g]["responses"].size(); ++r)
      for (const char* field : {"logprobs", "entropies"})
        EXPECT_EQ(scores[g]["responses"][r][field].size(), groups[g]["responses"][r]["ids"].size());
  }
}

// Mutation seen red: ordered by response.
TEST_F(Score, SummaryRanksEachGroupsResponsesBestFirst) {
  const auto outcome = coppice(arguments("scores.jsonl", {"--summary"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto scores = json_lines(dir_ / "scores.jsonl"),
             groups = json_lines(dir_ / "rollouts.jsonl");
  std::istringstream text(outcome.out);
  std::string line;
  for (std::size_t g = 0; g < scores.size(); ++g) {
    const auto& responses = scores[g]["responses"];
    std::getline(text, line);
    EXPECT_EQ(line, fmt::format("{}: {} responses to {} prompt tokens",
                                groups[g]["group"].get<std::string>(), responses.size(),
                                groups[g]["prompt_ids"].size()));
    std::getline(text, line);
    double last = std::numeric_limits<double>::infinity();
    for (std::size_t place = 1; place <= responses.size(); ++place) {
      std::size_t response = 0, by_sum = 0, by_mean = 0, tokens = 0;
      double sum = 0, mean = 0;
      text >> response >> by_sum >> by_mean >> tokens >> sum >> mean;
      std::getline(text, line);
      const auto logprobs = responses[response]["logprobs"].get<std::vector<double>>();
      const double exact = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
      EXPECT_EQ(by_sum, place);
      EXPECT_EQ(tokens, logprobs.size());
      EXPECT_NEAR(sum, exact, 1e-5 * std::abs(exact));
      if (tokens > 0) {
        EXPECT_NEAR(mean, exact / static_cast<double>(tokens), 1e-5 * std::abs(mean));
        EXPECT_LE(sum, last);
        last = sum;
      }
    }
  }
  EXPECT_FALSE(std::getline(text, line));
}

// Seen red with: a sibling response visible; positions that run on over the packed rows.
TEST_F(Score, GroupedEqualsRepeatedWhateverTheMicrobatch) {
  for (const auto& [precision, bound] : {std::pair{"f64", 1e-12}, std::pair{"f32", 2e-5}}) {
    const auto grouped = logprobs(score({"--precision", precision}));
    const auto repeated = logprobs(score({"--precision", precision, "--sharing", "repeated",
                                          "--set", "batching.max_rows_per_microbatch=30"}));
    double norm = distance(grouped, logprobs(score({"--temperature", "1e9"})));
    EXPECT_LE(distance(grouped, repeated), bound * norm) << precision;
  }
}

// At a temperature without bound every token is as likely as any other: log(1/61).
TEST_F(Score, DividesTheLogitsByTheTemperature) {
  const auto scores = score({"--temperature", "1e9", "--precision", "f64"});
  for (const auto& [name, values] : logprobs(scores))
    for (const double value : values) EXPECT_NEAR(value, -std::log(61.0), 1e-7);
  for (const auto& [name, values] : logprobs(scores, "entropies"))
    for (const double value : values) EXPECT_NEAR(value, std::log(61.0), 1e-7);
}

TEST_F(Score, FillsTheRolloutsFileSoThatTrainingIsOnPolicy) {
  const auto filled = score({"--fill", "old_logprobs"}, "filled.jsonl");
  const auto plain = json_lines(dir_ / "rollouts.jsonl"), scores = score({});
  ASSERT_EQ(filled.size(), plain.size());
  for (std::size_t g = 0; g < plain.size(); ++g)
    for (std::size_t r = 0; r < plain[g]["responses"].size(); ++r) {
      auto response = filled[g]["responses"][r];
      EXPECT_EQ(response["old_logprobs"], scores[g]["responses"][r]["logprobs"]);
      response.erase("old_logprobs");
      EXPECT_EQ(response, plain[g]["responses"][r]);
    }
  ASSERT_EQ(train({"data.rollouts=filled.jsonl", "limits.max_steps=1"}).status, 0);
  const auto step = metrics("run").at(0);
  EXPECT_NEAR(step["ratio_mean"].get<double>(), 1.0, 1e-6);
  EXPECT_EQ(step["clip_fraction"], 0.0);
  ASSERT_EQ(coppice({"score", "--checkpoint", "model.h5", "--rollouts", "filled.jsonl", "--out",
                     "both.jsonl", "--fill", "ref_logprobs"})
                .status,
            0);
  ASSERT_EQ(
      train({"data.rollouts=both.jsonl", "loss.kl_coef=0.1", "limits.max_steps=1", "run_dir=kl"})
          .status,
      0);
  EXPECT_NEAR(metrics("kl").at(0)["kl"].get<double>(), 0.0, 1e-9);
}

TEST_F(Score, RefusesWhatContradictsAFlagAndWritesNothing) {
  const auto before = files_below(dir_.path());
  const auto outcome =
      coppice(arguments("scores.jsonl", {"--sharing", "grouped", "--precision", "bf16", "--device",
                                         "cuda", "--temperature", "0", "--set",
                                         "batching.sharing=REPEATED", "--set", "loss.kind=SFT"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(
      outcome.problems(),
      testing::UnorderedElementsAre(
          HasSubstr("--temperature 0"), HasSubstr("--set loss.kind=SFT: coppice score takes"),
          HasSubstr("--sharing grouped and --set batching.sharing=REPEATED"),
          HasSubstr("--precision bf16: "), HasSubstr("--device cuda: ")));
  EXPECT_EQ(files_below(dir_.path()), before);
}

TEST_F(Score, RefusesMissingAndDamagedInputAndWritesNothing) {
  const auto missing = coppice({"score", "--checkpoint", "no.h5", "--rollouts", "no.jsonl", "--out",
                                "nowhere/scores.jsonl"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.problems(),
              ElementsAre(HasSubstr("no.h5"), HasSubstr("no.jsonl"), HasSubstr("nowhere")));
  write_file(
      dir_ / "bad.jsonl",
      "{\"group\": \"a\", \"prompt_ids\": [], \"responses\": [{\"ids\": [99]}]}\nnot JSON\n");
  const auto bad = coppice(
      {"score", "--checkpoint", "model.h5", "--rollouts", "bad.jsonl", "--out", "scores.jsonl"});
  EXPECT_EQ(bad.status, 2);
  EXPECT_THAT(bad.problems(), SizeIs(3));
  EXPECT_THAT(bad.err, testing::AllOf(HasSubstr("bad.jsonl:1: "), HasSubstr("response 0"),
                                      HasSubstr("bad.jsonl:2: ")));
  // Seen red: the rollouts were only read behind a model that is whole.
  write_file(dir_ / "torn.h5", read_file(dir_ / "model.h5").substr(0, 1000));
  const auto both = coppice(
      {"score", "--checkpoint", "torn.h5", "--rollouts", "bad.jsonl", "--out", "scores.jsonl"});
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.err, testing::AllOf(HasSubstr("torn.h5: "), HasSubstr("bad.jsonl:1: "),
                                       HasSubstr("bad.jsonl:2: ")));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "scores.jsonl"));
}

TEST_F(Score, NamesTheGroupThatDoesNotFitTheRowBudget) {
  const auto outcome =
      coppice(arguments("scores.jsonl", {"--set", "batching.max_rows_per_microbatch=2"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("\"g0\""));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "scores.jsonl"));
}

}  // namespace
}  // namespace coppice::test
