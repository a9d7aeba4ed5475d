// The rollouts file format as refusals and acceptances: each case writes a small file and looks at
// what the reader says. Expected values are by hand.
#include "rl/rollouts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/rng.hpp"
#include "rl/temporary_file.hpp"
#include "support/allocation_watch.hpp"
#include "support/damaged_file.hpp"

namespace coppice {
namespace {

using test::TemporaryFile;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> problems_of(const std::string& text, const RolloutNeeds& needs = {}) {
  const TemporaryFile file("r.jsonl", text);
  try {
    read_rollouts(file.path(), needs);
  } catch (const DataError& error) {
    std::vector<std::string> problems;
    for (std::string line : error.problems()) {
      const auto name = line.find("r.jsonl");
      problems.push_back(name == line.npos ? line : line.substr(name));
    }
    return problems;
  }
  return {};
}

std::string line_of(const std::string& response, const std::string& name = "g0") {
  return R"({"group": ")" + name + R"(", "prompt_ids": [1, 2], "responses": [{"ids": [7]}, )" +
         response + "]}\n";
}

TEST(Rollouts, AllFieldsArriveAsWritten) {
  const TemporaryFile good("r.jsonl",
                           R"({"group": "g\u00e9", "prompt_ids": [1, 2, 3], "responses": )"
                           R"([{"reward": -0.1, "ids": [20, 21, 22], "loss_mask": )"
                           R"([1, 0, 1], "old_logprobs": [-0.1, null, )"
                           R"(-0.30000000000000004], "ref_logprobs": [-1, -2e-3, )"
                           R"(100000000000000000000000], "advantages": [0.5, 1e38, -1], )"
                           R"("truncated": true}]})");
  const auto groups = read_rollouts(good.path(), {});
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].name, "g\u00e9");
  EXPECT_EQ(groups[0].line, 1);
  EXPECT_THAT(groups[0].prompt_ids, ElementsAre(1, 2, 3));
  const Response& response = groups[0].responses.at(0);
  EXPECT_THAT(response.ids, ElementsAre(20, 21, 22));
  EXPECT_EQ(response.reward, -0.1);
  EXPECT_THAT(response.loss_mask, ElementsAre(1, 0, 1));
  EXPECT_EQ(response.old_logprobs[0], -0.1);
  EXPECT_TRUE(std::isnan(response.old_logprobs[1]));
  EXPECT_EQ(response.old_logprobs[2], -0.30000000000000004);
  EXPECT_THAT(response.ref_logprobs, ElementsAre(-1, -2e-3, 1e23));
  EXPECT_THAT(response.advantages, ElementsAre(0.5, 1e38, -1));
  EXPECT_TRUE(response.truncated);
  EXPECT_EQ(response.loss_tokens(), 2);
}

TEST(Rollouts, AbsentFieldsHaveTheirDefaults) {
  const TemporaryFile file(
      "r.jsonl", R"({"group":"g","prompt_ids":[0],"responses":[{"ids":[5,6]},{"ids":[]}]})");
  const auto groups = read_rollouts(file.path(), {});
  const Response& response = groups.at(0).responses.at(0);
  EXPECT_THAT(response.loss_mask, ElementsAre(1, 1));
  EXPECT_FALSE(response.reward.has_value());
  EXPECT_FALSE(response.truncated);
  EXPECT_THAT(response.old_logprobs, SizeIs(0));
  EXPECT_EQ(groups[0].responses[1].loss_tokens(), 0);
  EXPECT_FALSE(has_old_logprobs(groups));
  EXPECT_FALSE(has_advantages(groups[0]));
}

TEST(Rollouts, ByteOrderMarkCarriageReturnsAndBlankLinesAreAccepted) {
  const TemporaryFile file("r.jsonl", "\xEF\xBB\xBF" + line_of(R"({"ids": [1]})", "a") +
                                          "\r\n  \n" + line_of(R"({"ids": [1]})", "b"));
  const auto groups = read_rollouts(file.path(), {});
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_EQ(groups[1].line, 4);
  const TemporaryFile crlf("r.jsonl", R"({"group":"a","prompt_ids":[1],"responses":[{"ids":[1]}]})"
                                      "\r\n");
  EXPECT_THAT(read_rollouts(crlf.path(), {}), SizeIs(1));
}

TEST(Rollouts, AFileWithoutGroupsIsRefused) {
  EXPECT_THAT(problems_of(""), ElementsAre("r.jsonl: the file holds no group."));
  EXPECT_THAT(problems_of("\n \n"), ElementsAre("r.jsonl: the file holds no group."));
}

TEST(Rollouts, AMissingFileAndADirectoryAreRefusedByName) {
  EXPECT_THROW(read_rollouts("no/such/file.jsonl", {}), DataError);
  EXPECT_THROW(read_rollouts(std::filesystem::temp_directory_path(), {}), DataError);
}

struct Refusal {
  const char* name;
  std::string text;
  std::string expected;  // starts a problem
  RolloutNeeds needs = {};
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class RolloutsRefuse : public testing::TestWithParam<Refusal> {};

TEST_P(RolloutsRefuse, WithFileLineGroupAndResponse) {
  const Refusal& refusal = GetParam();
  const auto problems = problems_of(refusal.text, refusal.needs);
  ASSERT_THAT(problems, SizeIs(1)) << testing::PrintToString(problems);
  EXPECT_THAT(problems[0], testing::StartsWith(refusal.expected));
}

RolloutNeeds vocabulary(std::int64_t size) { return {.vocab_size = size}; }

INSTANTIATE_TEST_SUITE_P(
    Format, RolloutsRefuse,
    testing::Values(
        Refusal{
            "BareNan",
            R"({"group": "g0", "prompt_ids": [1], "responses": [{"ids": [3], "old_logprobs": [NaN]}]})",
            "r.jsonl:1: group \"g0\", response 0: old_logprobs[0] = NaN is bad JSON"},
        Refusal{"RewardNan", line_of(R"({"ids": [3], "reward": NaN})"),
                "r.jsonl:1: group \"g0\", response 1: reward = NaN is bad JSON"},
        Refusal{"RewardMinusInfinity", line_of(R"({"ids": [3], "reward": -Infinity})"),
                "r.jsonl:1: group \"g0\", response 1: reward = -Infinity is bad JSON"},
        Refusal{"RewardOverflow", line_of(R"({"ids": [3], "reward": 1e999})"),
                "r.jsonl:1: group \"g0\", response 1: reward = 1e999 is infinite"},
        Refusal{"RewardText", line_of(R"({"ids": [3], "reward": "1"})"),
                "r.jsonl:1: group \"g0\", response 1: reward is not a number"},
        Refusal{"IdFraction", line_of(R"({"ids": [3, 4.0]})"),
                "r.jsonl:1: group \"g0\", response 1: ids[1] = 4.0 is not an integer"},
        Refusal{"IdNegative", line_of(R"({"ids": [-3, -4]})"),
                "r.jsonl:1: group \"g0\", response 1: ids[0] = -3 is no token id (the first of 2)"},
        Refusal{"IdHuge", line_of(R"({"ids": [4294967296]})"),
                "r.jsonl:1: group \"g0\", response 1: ids[0] = 4294967296 is no token id"},
        Refusal{"IdOutsideVocabulary", line_of(R"({"ids": [8, 10, 11]})"),
                "r.jsonl:1: group \"g0\", response 1: ids[1] = 10 is outside the model's "
                "vocabulary of 10 (the first of 2)",
                vocabulary(10)},
        Refusal{"IdsMissing", line_of(R"({"reward": 3})"),
                "r.jsonl:1: group \"g0\", response 1: field \"ids\" is missing"},
        Refusal{"IdsNoArray",
                line_of(R"({"ids": "abc", "loss_mask": [1, 0], "old_logprobs": [1]})"),
                "r.jsonl:1: group \"g0\", response 1: ids is not an array of token ids"},
        Refusal{"ResponseNoObject", line_of("17"),
                "r.jsonl:1: group \"g0\", response 1: it is not an"},
        Refusal{"NameNumber", R"({"group": 5, "prompt_ids": [1], "responses": [{"ids": [1]}]})",
                "r.jsonl:1: group is not a string"},
        Refusal{"NullField", line_of(R"({"ids": [3], "loss_mask": null})"),
                "r.jsonl:1: group \"g0\", response 1: loss_mask is not an array"},
        Refusal{"MaskLength", line_of(R"({"ids": [3, 4], "loss_mask": [1]})"),
                "r.jsonl:1: group \"g0\", response 1: loss_mask has 1 entries for 2 ids"},
        Refusal{"MaskValue", line_of(R"({"ids": [3, 4], "loss_mask": [1, 0.5]})"),
                "r.jsonl:1: group \"g0\", response 1: loss_mask[1] = 0.5 is neither 0 nor 1"},
        Refusal{"RefLength", line_of(R"({"ids": [3, 4], "ref_logprobs": [1, 2, 3]})"),
                "r.jsonl:1: group \"g0\", response 1: ref_logprobs has 3 entries for 2 ids"},
        Refusal{"TruncatedNumber", line_of(R"({"ids": [3], "truncated": 1})"),
                "r.jsonl:1: group \"g0\", response 1: truncated is neither true nor false"},
        Refusal{"UnknownField", line_of(R"({"ids": [3], "rewards": 1})"),
                "r.jsonl:1: group \"g0\", response 1: unknown field \"rewards\""},
        Refusal{"ReservedField", line_of(R"({"ids": [3], "sampler_logprobs": [[1], {"a": 2}]})"),
                "r.jsonl:1: group \"g0\", response 1: field \"sampler_logprobs\" is reserved"},
        Refusal{"DuplicateKey", line_of(R"({"ids": [3], "ids": [4]})"),
                "r.jsonl:1: group \"g0\", response 1: field \"ids\" stands twice"},
        Refusal{"ReservedInGroup",
                R"({"group": "g", "prompt_ids": [1], "branches": [], "responses": [{"ids": [1]}]})",
                "r.jsonl:1: group \"g\": field \"branches\" is reserved"},
        Refusal{"NoResponses", R"({"group": "g", "prompt_ids": [1], "responses": []})",
                "r.jsonl:1: group \"g\": responses is empty"},
        Refusal{"ResponsesMissing", R"({"group": "g", "prompt_ids": [1]})",
                "r.jsonl:1: group \"g\": field \"responses\" is missing"},
        Refusal{"EmptyPrompt", R"({"group": "g", "prompt_ids": [], "responses": [{"ids": [1]}]})",
                "r.jsonl:1: group \"g\": prompt_ids is empty"},
        Refusal{"NameMissing", R"({"prompt_ids": [1], "responses": [{"ids": [1]}]})",
                "r.jsonl:1: field \"group\" is missing"},
        Refusal{"NotAnObject", "[1, 2]\n", "r.jsonl:1: the line is not a JSON object"},
        Refusal{"Truncated", R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1)",
                "r.jsonl:1: bad JSON ("},
        Refusal{"TrailingComma",
                R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1]}],})",
                "r.jsonl:1: group \"g\": bad JSON"},
        Refusal{"TwoObjects",
                R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1]}]} {})",
                "r.jsonl:1: group \"g\": bad JSON"},
        Refusal{"BadUtf8",
                "{\"group\": \"\xff\", \"prompt_ids\": [1], \"responses\": [{\"ids\": [1]}]}",
                "r.jsonl:1: bad JSON"},
        Refusal{"TooLong", line_of(R"({"ids": [3, 4, 5]})"),
                "r.jsonl:1: group \"g0\", response 1: prompt and response have 2 + 3 = 5 tokens, "
                "the model's maximum position is 4",
                RolloutNeeds{.max_positions = 4}},
        Refusal{"SameName", line_of(R"({"ids": []})") + "\n" + line_of(R"({"ids": []})"),
                "r.jsonl:3: group \"g0\": the name stands on line 1 already"},
        Refusal{"OldForSomeOnly", line_of(R"({"ids": [3], "old_logprobs": [-1]})"),
                "r.jsonl:1: group \"g0\", response 0: old_logprobs are missing, but line 1, group "
                "\"g0\", response 1 has them"},
        Refusal{"AdvantagesForSomeOnly", line_of(R"({"ids": [3], "advantages": [-1]})"),
                "r.jsonl:1: group \"g0\", response 0: advantages are missing, but response 1 has"}),
    [](const auto& refusal) { return refusal.param.name; });

TEST(Rollouts, AllProblemsOfAFileAreListedAtOnceInOrder) {
  const std::string text = line_of(R"({"ids": [3, 99], "reward": null})", "a") + "{bad\n" +
                           line_of(R"({"ids": [3], "reward": 1, "x": 2})", "b");
  const auto problems = problems_of(text, {.vocab_size = 10, .rewards = true});
  ASSERT_THAT(problems, SizeIs(6)) << testing::PrintToString(problems);
  EXPECT_THAT(problems[0], HasSubstr("r.jsonl:1: group \"a\", response 0: reward is missing"));
  EXPECT_THAT(problems[1], HasSubstr("r.jsonl:1: group \"a\", response 1: ids[1] = 99"));
  EXPECT_THAT(problems[2], HasSubstr("r.jsonl:1: group \"a\", response 1: reward is missing"));
  EXPECT_THAT(problems[3], HasSubstr("r.jsonl:2: bad JSON"));
  EXPECT_THAT(problems[4], HasSubstr("r.jsonl:3: group \"b\", response 0: reward is missing"));
  EXPECT_THAT(problems[5], HasSubstr("r.jsonl:3: group \"b\", response 1: unknown field \"x\""));
}

TEST(Rollouts, BeyondTwoHundredProblemsOnlyTheirNumberIsTold) {
  std::string text;
  for (int i = 0; i < 250; ++i) text += "[]\n";
  const auto problems = problems_of(text);
  ASSERT_THAT(problems, SizeIs(201));
  EXPECT_EQ(problems.back(), "r.jsonl: and 50 more problems.");
}

TEST(Rollouts, ValuesMayBeAnythingWhereTheMaskIsZeroAndMustBeFiniteElsewhere) {
  const std::string text =
      R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1, 2, 3], "loss_mask": [0, 0, 1], )"
      R"("old_logprobs": [null, 1e999, -1], "ref_logprobs": [1e38, 7, null], "advantages": [null, 5, -1e999]}]})";
  EXPECT_THAT(problems_of(text), SizeIs(0));
  EXPECT_THAT(problems_of(text, {.old_values = true}), SizeIs(0));
  const auto problems =
      problems_of(text, {.old_values = true, .ref_values = true, .advantage_values = true});
  ASSERT_THAT(problems, SizeIs(2)) << testing::PrintToString(problems);
  EXPECT_THAT(problems[0], HasSubstr("response 0: ref_logprobs[2] is null where loss_mask is 1"));
  EXPECT_THAT(problems[1], HasSubstr("response 0: advantages[2] is infinite where"));
}

TEST(Rollouts, RewardsAreNeededOnlyWithoutAdvantages) {
  EXPECT_THAT(problems_of(line_of(R"({"ids": [3], "reward": 1})"), {.rewards = true}), SizeIs(1));
  EXPECT_THAT(problems_of(line_of(R"({"ids": [3]})")), SizeIs(0));
  EXPECT_THAT(
      problems_of(
          R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1], "advantages": [2]}]})",
          {.rewards = true}),
      SizeIs(0));
}

TEST(Rollouts, RefLogprobsAreNeededOnlyOnResponsesWithLearningTokens) {
  const std::string text =
      R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1], "loss_mask": [0]}, {"ids": []}, {"ids": [1], "truncated": true}]})";
  const auto problems = problems_of(text, {.ref_logprobs = true});
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0], HasSubstr("response 2: ref_logprobs are missing"));
  EXPECT_THAT(problems_of(text, {.ref_logprobs = true, .mask_truncated = true}), SizeIs(0));
}

TEST(Rollouts, MaskTruncatedTakesTruncatedResponsesOutOfTheLossAndKeepsTheirReward) {
  const TemporaryFile file("r.jsonl",
                           line_of(R"({"ids": [3, 4], "reward": 2, "truncated": true})"));
  const auto groups = read_rollouts(file.path(), {.mask_truncated = true});
  EXPECT_THAT(groups[0].responses[1].loss_mask, ElementsAre(0, 0));
  EXPECT_EQ(groups[0].responses[1].reward, 2);
  EXPECT_EQ(groups[0].responses[0].loss_tokens(), 1);
}

// Every cut of a good line is refused, and none crashes.
TEST(Rollouts, EveryTruncationOfALineIsRefused) {
  const std::string line =
      R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [1, 2], "loss_mask": [0, 1], "old_logprobs": [null, -1.5e-3], "truncated": false}]})";
  EXPECT_THAT(problems_of(line), SizeIs(0));
  for (std::size_t length = 1; length < line.size(); ++length)
    EXPECT_GE(problems_of(line.substr(0, length)).size(), 1u) << line.substr(0, length);
}

// Random bytes changed, removed or put in: a file is read or refused, and nothing else happens.
TEST(Rollouts, DamagedFilesAreReadOrRefusedAndNeverCrash) {
  const std::string good =
      line_of(R"({"ids": [1, 2], "loss_mask": [0, 1], "reward": -1.5e-3, "truncated": false})",
              "a") +
      line_of(R"({"ids": [], "reward": null, "ref_logprobs": []})", "\\u00e9\\n");
  EXPECT_THAT(problems_of(good), SizeIs(0));
  const RandomStream random(3, "damage");
  constexpr std::string_view kBytes = "{}[]:,\"\\ 0123456789-+.eEnulltruefalse\n\r\t\xff\xc3\x01";
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "r.jsonl";
  std::uint64_t draw = 0;
  std::size_t read = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    for (std::uint64_t change = 0; change <= random.below(3, draw); ++change) {
      const std::size_t place = random.below(text.size(), ++draw);
      const char byte = kBytes[random.below(kBytes.size(), ++draw)];
      switch (random.below(3, ++draw)) {
        case 0:
          text[place] = byte;
          break;
        case 1:
          text.erase(place, 1 + random.below(5, ++draw));
          break;
        default:
          text.insert(place, 1, byte);
      }
    }
    ++draw;
    std::filesystem::remove(path);  // writing over a file may wait for the disk
    std::ofstream(path, std::ios::binary) << text;
    try {
      for (const Group& group : read_rollouts(path, {.vocab_size = 1000}))
        for (const Response& response : group.responses)
          ASSERT_EQ(response.loss_mask.size(), response.ids.size()) << text;
      ++read;
    } catch (const DataError& error) {
      ASSERT_FALSE(error.problems().empty());
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(read, 20u);
}

// The file cut at every 4 KiB, and single bits flipped: refused with its name, or read as a file of
// that text reads, in blocks that the file is worth. A cut at a line's end is a shorter file.
// Seen red: problems of a line that do not name the file.
TEST(Rollouts, CutsAndFlippedBitsAreReadOrRefusedInBoundedMemory) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "r.jsonl";
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += line_of(R"({"ids": [1, 2, 30], "loss_mask": [0, 1, 1], "reward": -1.5e-3, )"
                    R"("old_logprobs": [null, -0.25, -1e-300], "truncated": false})",
                    "g" + std::to_string(i));
  constexpr std::string_view kWithoutOld = R"({"ids": [7]}, )";
  for (auto at = text.find(kWithoutOld); at != text.npos; at = text.find(kWithoutOld))
    text.erase(at, kWithoutOld.size());
  test::write_file(path, text);
  const test::DamagedFile file(path);
  const auto read = [&]() -> std::optional<std::size_t> {
    test::forget_allocations();
    std::optional<std::size_t> groups;
    try {
      const auto all = read_rollouts(path, {.vocab_size = 1000, .old_values = true});
      groups = all.size();
      for (const Group& group : all) {
        EXPECT_FALSE(group.prompt_ids.empty());
        for (const Response& response : group.responses) {
          EXPECT_EQ(response.loss_mask.size(), response.ids.size());
          for (const auto id : response.ids) EXPECT_TRUE(id >= 0 && id < 1000) << id;
        }
      }
    } catch (const DataError& error) {
      for (const auto& line : error.problems()) EXPECT_THAT(line, HasSubstr("r.jsonl"));
    }
    // A parser's tables have a few words for each byte of a line.
    EXPECT_LE(test::largest_allocation(), 8 * text.size() + (64 << 10));
    return groups;
  };
  ASSERT_GT(text.size(), 3 * 4096u);
  EXPECT_EQ(read(), 100u);
  file.for_each_cut([&](std::size_t length) {
    const auto lines =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length), '\n');
    const auto groups = read();
    const bool between = length > 0 && (text[length - 1] == '\n' || text[length] == '\n');
    EXPECT_EQ(groups.has_value(), between) << length;
    if (!groups) return;
    EXPECT_EQ(*groups, static_cast<std::size_t>(lines + (text[length] == '\n')));
  });
  int refused = 0;
  file.for_random_flips(2000, text.size(), [&](std::size_t bit) {
    const auto groups = read();
    EXPECT_EQ(groups.value_or(100), 100u) << bit;
    refused += groups ? 0 : 1;
  });
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace coppice
