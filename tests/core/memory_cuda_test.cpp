// Memory and uploads on a CUDA device, real or emulated.
#include <gtest/gtest.h>

#include <numeric>

#include "core/copy.hpp"
#include "core/cuda/runtime.hpp"
#include "core/cuda/upload.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::kCudaDevice;
using test::TestContext;
using test::values_of;

TEST(MemoryCuda, KeepsTheAccountAsOnTheCpu) {
  Stream stream(kCudaDevice);
  Memory memory(stream);
  {
    const Buffer a = memory.allocate(100, "weights"), b = memory.allocate(50, "scratch");
    EXPECT_EQ(memory.current_bytes(), 150);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 256, 0U);
    EXPECT_EQ(memory.allocate(0, "scratch").bytes(), 0);
  }
  EXPECT_EQ(memory.current_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 150);
  stream.synchronize();
}

TEST(MemoryCuda, ABlockThatTheDeviceDoesNotHaveIsADeviceErrorAndLeavesTheAccountAsItWas) {
  Stream stream(kCudaDevice);
  Memory memory(stream);
  EXPECT_THROW(memory.allocate(std::int64_t{1} << 60, "too much"), DeviceError);
  EXPECT_EQ(memory.current_bytes(), 0);
}

TEST(MemoryCuda, NeedsAStream) { EXPECT_THROW(Memory memory(kCudaDevice), ContractError); }

TEST(MemoryCuda, WorkEnqueuedBeforeABufferEndsStillHasIt) {
  TestContext test(kCudaDevice), host;
  for (int round = 0; round < 8; ++round) {
    Tensor kept = test.zeros(DType::kF32, {1000});
    {
      const Tensor gone = test.filled(DType::kF32, {1000}, round);
      copy(test.stream(), gone, kept);
    }
    const Tensor next = test.filled(DType::kF32, {1000}, -1.0);  // may be where `gone` was
    EXPECT_EQ(values_of(kept), std::vector<double>(1000, round));
  }
}

TEST(MemoryCuda, PropertiesAndCountAgree) {
  ASSERT_GE(cuda::device_count(), 1);
  const auto properties = cuda::properties(kCudaDevice);
  EXPECT_FALSE(properties.name.empty());
  EXPECT_GE(properties.compute_capability, 80);
  EXPECT_GE(properties.shared_bytes_per_block, 99 << 10);
  EXPECT_THROW(cuda::properties({DeviceKind::kCuda, 1000}), DeviceError);
  EXPECT_THROW(Stream({DeviceKind::kCuda, 1000}), DeviceError);
}

// More than the staging holds, so that halves are used again while copies are on their way, and one
// span that it must grow for. Seen red on the emulated device without the wait for a half's copies.
TEST(UploadCuda, SpansArriveWhateverHappensToThemAfterwards) {
  TestContext test(kCudaDevice);
  const RandomStream random(1, "lengths");
  ScratchScope scratch(test.scratch());
  std::vector<std::vector<std::int32_t>> sent;
  std::vector<const std::int32_t*> arrived;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const auto length = i == 40 ? 200'000 : random.below(20'000, i);
    std::vector<std::int32_t> values(length);
    std::iota(values.begin(), values.end(), static_cast<std::int32_t>(i * 1000));
    sent.push_back(values);
    arrived.push_back(cuda::upload(test.ctx(), scratch, std::span(values)));
    std::fill(values.begin(), values.end(), -1);
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    std::vector<std::int32_t> back(sent[i].size());
    if (back.empty()) continue;
    cuda::copy(test.stream().state(),
               {cuda::CopyKind::kToHost, back.data(), arrived[i],
                static_cast<std::int64_t>(back.size() * sizeof(std::int32_t))});
    EXPECT_EQ(back, sent[i]) << i;
  }
}

TEST(UploadCuda, NothingIsNullptr) {
  TestContext test(kCudaDevice);
  ScratchScope scratch(test.scratch());
  EXPECT_EQ(cuda::upload(test.ctx(), scratch, std::span<const double>()), nullptr);
}

}  // namespace
}  // namespace coppice
