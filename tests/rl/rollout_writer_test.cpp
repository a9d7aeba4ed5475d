// What `score` writes, compared byte by byte with text made by hand.
#include "rl/rollout_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "rl/temporary_file.hpp"

namespace coppice {
namespace {

using test::TemporaryDirectory;
using test::TemporaryFile;

TEST(RolloutWriter, FillChangesNothingButTheField) {
  const TemporaryFile source(
      "r.jsonl",
      "\xEF\xBB\xBF{ \"group\":\"a\\u0041\" , \"responses\":[ {\"ids\":[1,2] , \"old_logprobs\" : "
      "[ null , 3 ] ,\"reward\":1.50}, {\"ids\": [], \"old_logprobs\":[]}], \"prompt_ids\":[1]}\r\n"
      "\n"
      "{\"group\": \"b\", \"prompt_ids\": [1], \"responses\": [{\"ids\": [3], \"old_logprobs\": "
      "[1], \"reward\": 1e0 }]}");
  const auto groups = read_rollouts(source.path(), {});
  const std::vector<GroupScores> scores = {{{{-0.1, -1e-300}, {}}, {{}, {}}}, {{{-0.5}, {}}}};
  const TemporaryDirectory out;
  fill_rollouts(source.path(), out.path() / "o", FillField::kOldLogprobs, groups, scores);
  EXPECT_EQ(test::read_file(out.path() / "o"),
            "\xEF\xBB\xBF{ \"group\":\"a\\u0041\" , \"responses\":[ {\"ids\":[1,2] , "
            "\"old_logprobs\" : [-0.1, -1e-300] ,\"reward\":1.50}, {\"ids\": [], "
            "\"old_logprobs\":[]}], \"prompt_ids\":[1]}\r\n"
            "\n"
            "{\"group\": \"b\", \"prompt_ids\": [1], \"responses\": [{\"ids\": [3], "
            "\"old_logprobs\": [-0.5], \"reward\": 1e0 }]}");
  fill_rollouts(source.path(), out.path() / "p", FillField::kRefLogprobs, groups, scores);
  const std::string filled = test::read_file(out.path() / "p");
  EXPECT_THAT(filled, testing::HasSubstr("\"reward\":1.50, \"ref_logprobs\": [-0.1, -1e-300]}, {"));
  EXPECT_THAT(filled, testing::HasSubstr("\"old_logprobs\":[], \"ref_logprobs\": []}], "));
  EXPECT_THAT(filled, testing::HasSubstr("\"reward\": 1e0 , \"ref_logprobs\": [-0.5]}]}"));
}

TEST(RolloutWriter, FilledValuesReadBackBitForBit) {
  const double third = 1.0 / 3.0, tiny = std::numeric_limits<double>::denorm_min();
  const TemporaryFile source(
      "r.jsonl", R"({"group": "a", "prompt_ids": [1], "responses": [{"ids": [1, 2, 3, 4]}]})");
  const TemporaryDirectory out;
  const std::vector<double> values = {-third, -tiny, -1.7976931348623157e308, -0.1 - 0.2};
  fill_rollouts(source.path(), out.path() / "o", FillField::kOldLogprobs,
                read_rollouts(source.path(), {}), std::vector<GroupScores>{{{values, {}}}});
  EXPECT_EQ(read_rollouts(out.path() / "o", {})[0].responses[0].old_logprobs, values);
}

TEST(RolloutWriter, ScoresAreOneObjectPerGroup) {
  const TemporaryDirectory out;
  std::vector<Group> groups(2);
  groups[0].name = "a\"b";
  groups[1].name = "c";
  write_scores(out.path() / "s", groups,
               std::vector<GroupScores>{{{{-0.25, -1}, {0.1, 2}}, {{}, {}}}, {{{-3}, {0}}}});
  EXPECT_EQ(test::read_file(out.path() / "s"),
            "{\"group\": \"a\\\"b\", \"responses\": [{\"logprobs\": [-0.25, -1], \"entropies\": "
            "[0.1, 2]}, {\"logprobs\": [], \"entropies\": []}]}\n"
            "{\"group\": \"c\", \"responses\": [{\"logprobs\": [-3], \"entropies\": [0]}]}\n");
}

TEST(RolloutWriter, ANonFiniteScoreIsRefusedAndLeavesNoFile) {
  const TemporaryDirectory out;
  const std::vector<Group> groups(1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(write_scores(out.path() / "s", groups, std::vector<GroupScores>{{{{nan}, {0.0}}}}),
               Error);
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

}  // namespace
}  // namespace coppice
