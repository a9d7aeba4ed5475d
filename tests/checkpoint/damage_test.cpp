// Damaged files: an error that names the file, or a load whose checksums hold. Each damaged copy is
// opened in this process, so a crash inside the HDF5 library would end the test, and no block may
// be larger than the file.
// Seen red: no checksum compared (flips in the values pass).
#include <gmock/gmock.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/example_state.hpp"
#include "core/error.hpp"
#include "support/allocation_watch.hpp"
#include "support/damaged_file.hpp"

namespace coppice {
namespace {

using test::DamagedFile;
using test::example_header;
using test::TemporaryDirectory;
using test::TestContext;
using testing::HasSubstr;

// What a load asks for beside the file's own bytes: streams, names, lists.
constexpr std::size_t kSmallBlocks = 64 << 10;

class Damage : public testing::Test {
 protected:
  Damage() {
    for (const char* group : {"/parameters/", "/optimizer/exp_avg/", "/optimizer/exp_avg_sq/"}) {
      const std::string dataset = std::string(group) + "large.weight";
      saved_.add(dataset, context_.random(DType::kF32, {67, 41}, dataset));
    }
    save_checkpoint(path_, example_header(), saved_.list);
  }

  // True if the file loads and passes --verify's comparison, and then with every value right.
  bool loads() {
    auto loaded = test::example_state(context_, DType::kF32, false);
    for (std::size_t i = loaded.list.size(); i < saved_.list.size(); ++i)
      loaded.add(saved_.list[i].dataset, context_.filled(DType::kF32, {67, 41}, 1.0));
    bool opened = false, verified = false, refused = false;
    test::forget_allocations();
    const auto attempt = [&](const auto& body) {
      try {
        body();
      } catch (const DataError& error) {
        for (const auto& line : error.problems()) EXPECT_THAT(line, HasSubstr("a.h5"));
        refused = true;
      }
    };
    attempt([&] {
      CheckpointReader reader(path_);
      opened = true;
      EXPECT_EQ(reader.header().trainer_json, example_header().trainer_json);
      EXPECT_EQ(reader.header().model_config_json, example_header().model_config_json);
      attempt([&] { reader.read(loaded.list); });
      if (refused) return;
      reader.verify();
      verified = true;
    });
    EXPECT_LE(test::largest_allocation(), bytes_ + kSmallBlocks);
    if (refused) {
      EXPECT_FALSE(verified);
      EXPECT_TRUE(test::untouched(loaded) || test::spoilt(loaded)) << "half loaded";
      return false;
    }
    EXPECT_TRUE(opened);
    for (std::size_t i = 0; i < saved_.tensors.size(); ++i) {
      EXPECT_TRUE(test::bit_equal(saved_.tensors[i], loaded.tensors[i])) << saved_.list[i].dataset;
    }
    return true;
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "a.h5";
  TestContext context_;
  test::ExampleState saved_ = test::example_state(context_, DType::kF32);
  std::size_t bytes_ = 1 << 20;
};

TEST_F(Damage, ATruncatedFileIsRefusedAtEveryLength) {
  const DamagedFile file(path_);
  bytes_ = file.whole().size();
  ASSERT_GT(bytes_, 8 * 4096u);
  ASSERT_TRUE(loads());
  file.for_each_cut([&](std::size_t length) { EXPECT_FALSE(loads()) << length; });
  for (std::size_t length = 0; length < bytes_; length += length < 128 ? 1 : 499)
    file.with_length(length, [&] { EXPECT_FALSE(loads()) << length; });
  ASSERT_TRUE(loads()) << "mended";
}

// Values have a checksum, so a flip in them is always seen.
TEST_F(Damage, AFlippedBitIsRefusedOrHarmless) {
  const DamagedFile file(path_);
  bytes_ = file.whole().size();
  int refused = 0;
  const auto try_flip = [&](std::size_t) { refused += loads() ? 0 : 1; };
  for (std::size_t bit = 0; bit < 384; ++bit)  // the superblock, 48 bytes
    file.with_flip(bit, [&] { try_flip(bit); });
  EXPECT_GT(refused, 384 / 2);
  refused = 0;
  file.for_random_flips(2000, bytes_, try_flip);
  EXPECT_GT(refused, 2000 / 2);
  // Some of every tensor, whose bytes are found by what they hold.
  for (const auto& tensor : saved_.tensors) {
    const std::string values(reinterpret_cast<const char*>(tensor.view().bytes()),
                             static_cast<std::size_t>(4 * tensor.numel()));
    const auto at = file.whole().find(values);
    ASSERT_NE(at, std::string::npos);
    for (std::size_t bit = 0; bit < 8 * values.size(); bit += 8 * values.size() / 16 + 1)
      file.with_flip(8 * at + bit, [&] { EXPECT_FALSE(loads()) << bit; });
  }
}

TEST_F(Damage, OverwrittenRunsAreRefusedOrHarmless) {
  const DamagedFile file(path_);
  bytes_ = file.whole().size();
  const RandomStream stream(2, "damage");
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto fill = static_cast<char>(stream.below(2, 3 * i + 1) == 0 ? 0x00 : 0xff);
    const std::string run(1 + stream.below(64, 3 * i + 2), fill);
    file.with_bytes(stream.below(bytes_ - run.size(), 3 * i), run, [&] { loads(); });
  }
}

}  // namespace
}  // namespace coppice
