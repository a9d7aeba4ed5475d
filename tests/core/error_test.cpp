#include "core/error.hpp"

#include <gtest/gtest.h>

#include "core/device.hpp"

namespace coppice {
namespace {

TEST(Error, AFailedCheckNamesExpressionValuesAndPlaceButNoPathOfTheMachine) {
  const int rows = 3;
  try {
    COPPICE_CHECK(rows == 4, "rows = {} must be 4", rows);
    FAIL() << "did not throw";
  } catch (const ContractError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("rows = 3 must be 4"), message.npos) << message;
    EXPECT_NE(message.find("rows == 4"), message.npos) << message;
    EXPECT_NE(message.find("error_test.cpp:"), message.npos) << message;
    EXPECT_EQ(message.find("/"), message.npos) << message;
  }
}

TEST(Error, AllProblemsAreThrownTogether) {
  Problems problems;
  problems.throw_if_any<ConfigError>();  // none yet
  problems.add("a = {}", 1);
  problems.add_all({"b", "c"});
  try {
    problems.throw_if_any<DataError>();
    FAIL() << "did not throw";
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems(), (std::vector<std::string>{"a = 1", "b", "c"}));
    EXPECT_STREQ(error.what(), "a = 1\nb\nc");
  }
}

TEST(Error, AnOpWithoutABodyForADeviceSaysSo) {
  EXPECT_THROW(throw_no_backend("gemm", Device{DeviceKind::kCuda, 1}), DeviceError);
}

}  // namespace
}  // namespace coppice
