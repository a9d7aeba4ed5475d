// A difference planted on one rank, in every kind of part, is found, named, and ends all ranks.
#include "rl/parameter_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ranks/fake_parameters.hpp"
#include "ranks/ranks_session.hpp"

namespace coppice {
namespace {

using test::FakeGrid;
using test::FakeParameters;
using test::TestContext;
using test::value_of;

template <class Body>
void on_every_grid(Body&& body) {
  auto& session = test::ranks_session();
  for (const FakeGrid& fake : test::fake_grids(session.size())) {
    const int sharers = std::max(1, fake.sizes.tensor / fake.heads);
    ProcessGrid grid(session, fake.sizes, {.seconds = 60}, sharers);
    TestContext test(1);
    FakeParameters fakes(grid, fake.heads, DType::kF32, test.memory());
    fakes.fill(&Parameter::value, value_of);
    SCOPED_TRACE(fmt::format("tp {} cp {} dp {} heads {} rank {}", fake.sizes.tensor,
                             fake.sizes.context, fake.sizes.data, fake.heads, session.rank()));
    body(grid, test, fakes, sharers);
  }
}

TEST(ParameterCheck, PassesWhereAllRanksHoldTheSame) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes, int) {
    EXPECT_NO_THROW(check_identical_parameters(test.ctx(), grid, fakes.list()));
  });
}

// The lowest bit of one weight on the last rank. Whether anybody else holds that weight follows
// from the grid. Mutations seen red: whole parts not compared over tensor ranks;
// shared heads not compared; sharded parts not compared over replicas; replicas named as if there
// were no tensor ranks.
TEST(ParameterCheck, FindsOneBitOnOneRankAndNamesItOnAllRanks) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes, int sharers) {
    const int last = grid.world().size() - 1;
    const bool has_replicas = grid.replicas().size() > 1, has_tensor = grid.tensor().size() > 1;
    const std::map<std::string, bool> held_twice{{"norm", has_replicas || has_tensor},
                                                 {"bias", has_replicas || has_tensor},
                                                 {"frozen", has_replicas || has_tensor},
                                                 {"q", has_replicas},
                                                 {"output", has_replicas},
                                                 {"k", has_replicas || sharers > 1}};
    for (const auto& [name, is_held_twice] : held_twice) {
      const auto flip = [&, wanted = name] {
        if (grid.world().rank() != last) return;
        fakes.for_each([&](Parameter& parameter, const ParameterPart& part, std::int64_t,
                           std::int64_t row, std::int64_t column) {
          if (part.name != wanted || row != part.row_begin || column != 0) return;
          auto* bits = parameter.value.view().bytes();
          bits[row * (parameter.value.numel() / parameter.rows()) * 4] ^= std::byte{1};
        });
      };
      flip();
      std::string message;
      try {
        check_identical_parameters(test.ctx(), grid, fakes.list());
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_EQ(!message.empty(), is_held_twice) << name;
      if (is_held_twice) {
        EXPECT_THAT(message, testing::HasSubstr(fmt::format("{} has other values on ranks", name)));
        EXPECT_THAT(message, testing::ContainsRegex(fmt::format("ranks {} \\(", last)));
      }
      flip();
    }
  });
}

}  // namespace
}  // namespace coppice
