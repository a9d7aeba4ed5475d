// NVIDIA's NCCL itself, as far as it goes without a device: that it is linked, is new enough, makes
// ids and has words for its codes.
#include <gmock/gmock.h>

#include "parallel/nccl/nccl_calls.hpp"

namespace coppice {
namespace {

TEST(NcclLibrary, IsTheVersionThatIsAskedFor) {
  EXPECT_THAT(nccl::version(), testing::MatchesRegex("NCCL 2\\.[0-9]+\\.[0-9]+"));
  EXPECT_GE(std::stoi(nccl::version().substr(7)), 28);
}

TEST(NcclLibrary, MakesAnotherIdEachTime) {
  const nccl::UniqueId first = nccl::make_unique_id(), second = nccl::make_unique_id();
  EXPECT_NE(first.bytes, second.bytes);
  EXPECT_NE(first.bytes, nccl::UniqueId{}.bytes);
}

// The codes are those of nccl.h: a peer that was lost, a call that was wrong.
TEST(NcclLibrary, SaysWhatItsCodesMean) {
  EXPECT_EQ(nccl::text_of(0), "no error");
  EXPECT_THAT(nccl::text_of(4), testing::HasSubstr("invalid argument"));
  EXPECT_THAT(nccl::text_of(6), testing::HasSubstr("remote process"));
}

// A connection without a device is refused in words, not by a crash.
TEST(NcclLibrary, RefusesARankThatIsNotOfTheCommunicator) {
  try {
    nccl::begin({DeviceKind::kCuda, 0}, nccl::make_unique_id(), 2, 1, "tensor");
    ADD_FAILURE() << "nobody minded";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("ncclCommInitRankConfig failed: "));
  }
}

}  // namespace
}  // namespace coppice
