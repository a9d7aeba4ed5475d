// Forward and backward of prefix attention against the double reference.
#include "attention/prefix_attention.hpp"

#include <gtest/gtest.h>

#include "attention/support.hpp"

namespace coppice {
namespace {

class PrefixAttention : public testing::TestWithParam<DType> {
 protected:
  test::TestContext test_;
};

INSTANTIATE_TEST_SUITE_P(Backends, PrefixAttention, testing::Values(DType::kF32, DType::kF64),
                         [](const auto& made_for) {
                           return made_for.param == DType::kF64 ? "CpuF64" : "CpuF32";
                         });

TEST_P(PrefixAttention, EqualsTheReferenceOnAGroup) {
  const auto tree = test::group_tree(65, {17, 0, 1, 64});
  const auto forest = test::forest_of(tree);
  const test::Heads heads{6, 2, 8};
  auto data = test::attention_data(test_, GetParam(), forest.rows(), forest.rows(), heads);
  test::run(test_.ctx(), AttentionPlan(forest), data);
  const auto d = test::differences(data, reference::visibility(tree));
  EXPECT_LE(d.largest(), test::tolerance(GetParam(), forest.rows()))
      << d.out << " " << d.lse << " " << d.dq << " " << d.dk << " " << d.dv;
}

}  // namespace
}  // namespace coppice
