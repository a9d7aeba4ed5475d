// Damaged files: an error that names the file, or a load whose checksums hold. Each damaged copy is
// opened in this process, so a crash inside the HDF5 library would end the test.
// Seen red: no checksum compared (flips in the values pass).
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/example_state.hpp"
#include "core/error.hpp"
#include "core/rng.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::example_header;
using test::TemporaryDirectory;
using test::TestContext;
using testing::HasSubstr;

class Damage : public testing::Test {
 protected:
  Damage() : saved_(test::example_state(context_, DType::kF32)) {
    save_checkpoint(directory_ / "a.h5", example_header(), saved_.list);
    whole_ = test::read_file(directory_ / "a.h5");
  }

  // True if the file loads, and then with every value right.
  bool loads(const std::string& bytes) {
    test::write_file(directory_ / "a.h5", bytes);
    auto loaded = test::example_state(context_, DType::kF32, false);
    try {
      const CheckpointReader reader(directory_ / "a.h5");
      reader.read(loaded.list);
      EXPECT_EQ(reader.header().trainer_json, example_header().trainer_json);
      EXPECT_EQ(reader.header().model_config_json, example_header().model_config_json);
    } catch (const DataError& error) {
      for (const auto& line : error.problems()) EXPECT_THAT(line, HasSubstr("a.h5"));
      for (const auto& tensor : loaded.tensors) {
        for (double value : test::values_of(tensor)) EXPECT_EQ(value, 1.0) << "half loaded";
      }
      return false;
    }
    for (std::size_t i = 0; i < saved_.tensors.size(); ++i) {
      EXPECT_TRUE(test::bit_equal(saved_.tensors[i], loaded.tensors[i])) << saved_.list[i].dataset;
    }
    return true;
  }

  TemporaryDirectory directory_;
  TestContext context_;
  test::ExampleState saved_;
  std::string whole_;
};

TEST_F(Damage, ATruncatedFileIsRefusedAtEveryLength) {
  ASSERT_TRUE(loads(whole_));
  for (std::size_t length = 0; length < whole_.size(); length += length < 128 ? 1 : 97) {
    EXPECT_FALSE(loads(whole_.substr(0, length))) << length;
  }
  EXPECT_FALSE(loads(whole_.substr(0, whole_.size() - 1)));
}

TEST_F(Damage, AFlippedBitIsRefusedOrHarmless) {
  const RandomStream stream(1, "damage");
  int refused = 0;
  constexpr int kFlips = 600;
  for (std::uint64_t i = 0; i < kFlips; ++i) {
    std::string damaged = whole_;
    // The first flips take every bit of the superblock, 48 bytes; the others fall anywhere.
    const auto bit = i < 384 ? i : stream.below(8 * whole_.size(), i);
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    refused += loads(damaged) ? 0 : 1;
  }
  EXPECT_GT(refused, kFlips / 4);
}

TEST_F(Damage, OverwrittenRunsAreRefusedOrHarmless) {
  const RandomStream stream(2, "damage");
  for (std::uint64_t i = 0; i < 200; ++i) {
    std::string damaged = whole_;
    const auto begin = stream.below(whole_.size() - 64, 3 * i);
    const auto fill = static_cast<char>(stream.below(2, 3 * i + 1) == 0 ? 0x00 : 0xff);
    for (std::size_t j = 0; j < 1 + stream.below(64, 3 * i + 2); ++j) damaged[begin + j] = fill;
    loads(damaged);
  }
}

}  // namespace
}  // namespace coppice
