// Whatever a message quotes, it stays one line of good UTF-8.
#include "launch/one_line.hpp"

#include <gtest/gtest.h>

namespace coppice::test {
namespace {

TEST(OneLine, LeavesGoodTextAsItIs) {
  for (const char* text : {"", "loss: 1.5", "gr\u00fcn \u20ac \U0001F333", "\u07ff\u0800\uffff"})
    EXPECT_EQ(one_line(text), text);
}

// Seen red: control characters passed through; a lead byte's followers not looked at.
TEST(OneLine, WritesControlCharactersAndBytesThatAreNoUtf8AsEscapes) {
  EXPECT_EQ(one_line("a\nb\tc\r"), "a\\nb\\tc\\x0d");
  EXPECT_EQ(one_line(std::string_view("\0\x1b[1m\x7f", 6)), "\\x00\\x1b[1m\\x7f");
  EXPECT_EQ(one_line("\xe4\xf6"), "\\xe4\\xf6");
  EXPECT_EQ(one_line("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(one_line("\xe2\x82x"), "\\xe2\\x82x") << "cut off within";
  EXPECT_EQ(one_line("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
}

}  // namespace
}  // namespace coppice::test
