// Records of event files against published checksums, and tags against a line of metrics. What
// TensorBoard's own reader makes of whole files: tools/check_tensorboard.py.
#include <gtest/gtest.h>

#include <map>

#include "launch/tensorboard_record.hpp"
#include "launch/tensorboard_tags.hpp"

namespace coppice::test {
namespace {

// RFC 3720, appendix B.4, and the check value of every catalogue of CRCs.
// Seen red: the polynomial of CRC-32; the last inversion left out.
TEST(TensorboardRecord, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

// length 9, its checksum, the bytes, theirs: 0xe3069283 rotated right by 15 is 0x2507c60d, plus
// 0xa282ead8 is 0xc78ab0e5.
TEST(TensorboardRecord, HoldsLengthAndMaskedChecksums) {
  const std::string record = framed_record("123456789");
  ASSERT_EQ(record.size(), 8U + 4U + 9U + 4U);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(record.substr(21), "\xe5\xb0\x8a\xc7");
}

TEST(TensorboardRecord, ATornFileIsReadUpToItsTear) {
  const std::string first = framed_record("one"), file = first + framed_record("");
  for (std::size_t length = 0; length < file.size(); ++length)
    EXPECT_EQ(records_of(std::string_view(file).substr(0, length)).size(),
              length < first.size() ? 0U : 1U)
        << length;
  EXPECT_EQ(records_of(file).size(), 2U);
}

// Seen red: checksums of a record's bytes not compared.
TEST(TensorboardRecord, AChangedByteEndsTheFile) {
  const std::string file = framed_record("one") + framed_record("two");
  for (std::size_t at = 0; at < file.size(); ++at) {
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    EXPECT_EQ(records_of(changed).size(), at < file.size() / 2 ? 0U : 1U) << at;
  }
}

TEST(TensorboardTags, EveryNumberOfALineHasOne) {
  std::map<std::string, double> values;
  for (const auto& value : tagged_values(
           R"({"step":3,"skipped":true,"loss":0.5,"rows":10,"logical_rows":25,"sharing":"GROUPED",)"
           R"("seconds":{"forward":0.25},"communication":{"tensor":{"calls":2,"bytes":8}},)"
           R"("newer":7})")) {
    EXPECT_TRUE(values.emplace(value.tag, value.value).second) << value.tag;
  }
  const std::map<std::string, double> expected = {{"run/skipped", 1},
                                                  {"loss/loss", 0.5},
                                                  {"batch/rows", 10},
                                                  {"batch/logical_rows", 25},
                                                  {"batch/sharing_ratio", 2.5},
                                                  {"time/forward", 0.25},
                                                  {"communication/tensor/calls", 2},
                                                  {"communication/tensor/bytes", 8},
                                                  {"other/newer", 7}};
  EXPECT_EQ(values, expected);
}

TEST(TensorboardTags, ALineWithoutRowsHasNoSharingRatio) {
  EXPECT_EQ(tagged_values(R"({"step":1,"rows":0,"logical_rows":0})").size(), 2U);
}

}  // namespace
}  // namespace coppice::test
