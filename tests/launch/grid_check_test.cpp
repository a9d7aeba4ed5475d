// Which tensor-parallel sizes a model allows. Lists are worked by hand from the three conditions.
#include "launch/grid_check.hpp"

#include <gmock/gmock.h>

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ModelConfig model(std::int64_t heads, std::int64_t key_value_heads, std::int64_t intermediate) {
  ModelConfig config;
  config.num_attention_heads = heads;
  config.num_key_value_heads = key_value_heads;
  config.intermediate_size = intermediate;
  return config;
}

// Seen red: the condition on key-value heads left out (9 would be allowed for 9 heads, 6 for 12).
TEST(TensorSizes, MeetAllThreeConditions) {
  EXPECT_THAT(tensor_sizes(model(9, 3, 1536)), ElementsAre(1, 3));  // 1536 is no multiple of 9
  EXPECT_THAT(tensor_sizes(model(9, 3, 1539)), ElementsAre(1, 3, 9));
  EXPECT_THAT(tensor_sizes(model(8, 2, 24)), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(tensor_sizes(model(12, 4, 24)), ElementsAre(1, 2, 4, 12));  // 3, 6 split a KV head
  EXPECT_THAT(tensor_sizes(model(7, 7, 10)), ElementsAre(1));
}

TEST(TensorProblems, NameValuesReasonsAndTheSizesThatWork) {
  EXPECT_THAT(tensor_problems(model(9, 3, 1536), 2, "run.textproto:4:12: parallel.tensor"),
              ElementsAre("run.textproto:4:12: parallel.tensor: num_attention_heads = 9 is not "
                          "divisible by parallel.tensor = 2 (each rank needs whole heads). This "
                          "model allows 1 or 3.",
                          "run.textproto:4:12: parallel.tensor: num_key_value_heads = 3 neither "
                          "divides nor is divisible by parallel.tensor = 2 (each rank needs whole "
                          "heads, or several ranks one). This model allows 1 or 3."));
  EXPECT_THAT(tensor_problems(model(9, 3, 1536), 9, "x"),
              ElementsAre("x: intermediate_size = 1536 is not divisible by parallel.tensor = 9 "
                          "(each rank needs equally many columns). This model allows 1 or 3."));
  EXPECT_THAT(tensor_problems(model(9, 3, 1536), 3, "x"), IsEmpty());
}

}  // namespace
}  // namespace coppice::test
