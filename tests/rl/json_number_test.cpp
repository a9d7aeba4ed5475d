// RFC 8259's number grammar, by example.
#include "rl/json_number.hpp"

#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(JsonNumber, AcceptsWhatTheGrammarAllows) {
  for (const char* text : {"0", "-0", "10", "1.50", "-0.1e10", "1E+999", "2e-3", "1e05"})
    EXPECT_TRUE(is_json_number(text)) << text;
}

TEST(JsonNumber, RefusesEverythingElse) {
  for (const char* text : {"", "-", "+1", "01", "-01", ".5", "1.", "1.e3", "1e", "1e+", "NaN",
                           "-Infinity", "1 ", "0x10", "1_000", "1e5.0"})
    EXPECT_FALSE(is_json_number(text)) << text;
}

}  // namespace
}  // namespace coppice
