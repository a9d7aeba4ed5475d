// The trainer's state as JSON and back.
#include "rl/training_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(TrainerState, ComesBackAsItWasWritten) {
  const TrainerState state{7, 2, 1, 4, 1, {3, 5}, 0xFFFFFFFFFFFFFFFF, "{\"step\":7}"};
  EXPECT_EQ(trainer_state_from_json(to_json(state), "x.h5"), state);
}

TEST(TrainerState, EveryMissingOrMistypedFieldIsListed) {
  try {
    trainer_state_from_json(R"({"step": 1, "bad_steps": -1, "seed": "1"})", "x.h5");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.problems().size(), 8u);
    EXPECT_THAT(error.problems()[0], testing::HasSubstr("x.h5: \"bad_steps\""));
  }
  EXPECT_THROW(trainer_state_from_json("", "x.h5"), DataError);
}

}  // namespace
}  // namespace coppice
