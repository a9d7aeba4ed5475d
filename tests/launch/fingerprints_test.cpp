// Hashes of input: equal for equal content, whatever its name, and another for any change.
#include "launch/fingerprints.hpp"

#include <gmock/gmock.h>

#include "core/error.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {
namespace {

class Fingerprints : public testing::Test {
 protected:
  std::uint64_t file_hash(const std::string& content) {
    write_file(dir_ / "file", content);
    return fingerprint_of_file("x", dir_ / "file").hash;
  }
  // Of a model with one weight.
  std::uint64_t model_hash(float value, const std::string& config, const char* name) {
    float values[] = {value, 2};
    const StateTensor weight = {"/parameters/w", Shard::whole({2}),
                                TensorView(reinterpret_cast<std::byte*>(values), DType::kF32, {2})};
    CheckpointHeader header;
    header.model_config_json = config;
    save_checkpoint(dir_ / name, header, std::span(&weight, 1));
    return fingerprint_of_model("x", CheckpointReader(dir_ / name)).hash;
  }
  TemporaryDirectory dir_;
};

TEST_F(Fingerprints, OfAFileAreThoseOfAllItsBytes) {
  std::string content(3 << 20, 'a');  // more than is read at once
  const auto hash = file_hash(content);
  EXPECT_EQ(file_hash(content), hash);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1} << 20, content.size() - 1}) {
    std::string changed = content;
    changed[at] = 'b';
    EXPECT_NE(file_hash(changed), hash) << at;
  }
  EXPECT_NE(file_hash(content + 'a'), hash);
  EXPECT_NE(file_hash(""), hash);
  EXPECT_THROW(fingerprint_of_file("x", dir_ / "none"), IoError);
}

TEST_F(Fingerprints, OfAModelDependOnItsHeaderAndEveryValueButNotOnItsName) {
  const auto hash = model_hash(1, "{}", "a.h5");
  EXPECT_EQ(model_hash(1, "{}", "b.h5"), hash);
  EXPECT_NE(model_hash(1.5, "{}", "b.h5"), hash);
  EXPECT_NE(model_hash(1, "{ }", "b.h5"), hash);
}

}  // namespace
}  // namespace coppice::test
