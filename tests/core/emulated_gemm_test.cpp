// A kernel as attention's are built, under the emulator: right as it stands, and every barrier or
// wait taken out of it is noticed, on every seed and in both schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/convert.hpp"
#include "core/cuda/emulated/gpu.hpp"
#include "core/kernels/gemm_kernel.hpp"
#include "core/rng.hpp"
#include "support/device_array.hpp"

namespace coppice {
namespace {

using emulated::Schedule;
using test::DeviceArray;
using test::GemmMutation;

class EmulatedGemm : public testing::TestWithParam<Schedule> {
 protected:
  EmulatedGemm() { emulated::gpu().options.schedule = GetParam(); }
  ~EmulatedGemm() override { emulated::gpu().options = {}; }

  // The multiplication with `mutation` is stopped on every seed, with one of these words.
  void expect_stopped(int k, GemmMutation mutation, const char* words) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      emulated::gpu().options.seed = seed;
      EXPECT_THAT([&] { multiply(64, 64, k, mutation); },
                  testing::ThrowsMessage<DeviceError>(testing::ContainsRegex(words)));
    }
  }

  std::vector<BF16> random(std::string_view name, int count) {
    const RandomStream numbers(1, name);
    std::vector<BF16> values;
    for (int i = 0; i < count; ++i) {
      values.push_back(to_bf16(static_cast<float>(numbers.normal(static_cast<std::uint64_t>(i)))));
    }
    return values;
  }

  std::vector<float> multiply(int m, int n, int k, GemmMutation mutation) {
    a_ = random("a", m * k), b_ = random("b", n * k);
    const DeviceArray<BF16> a(stream_, a_), b(stream_, b_);
    DeviceArray<float> c(stream_, static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
    const emulated::WriteWatch watch(c.data(), c.bytes());
    test::launch_gemm(stream_, {a.data(), b.data(), c.data(), m, n, k}, mutation);
    auto values = c.values();
    EXPECT_EQ(watch.unwritten_bytes(), 0);
    return values;
  }

  Stream stream_{Device{DeviceKind::kCuda, 0}};
  std::vector<BF16> a_, b_;
};

TEST_P(EmulatedGemm, EqualsTheSumOfProducts) {
  for (const auto& [m, n, k] : {std::array{64, 64, 32}, {1, 1, 8}, {65, 63, 40}, {130, 70, 104}}) {
    const auto c = multiply(m, n, k, GemmMutation::kNone);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int p = 0; p < k; ++p) {
          const double term = double{to_f32(a_[static_cast<std::size_t>(i * k + p)])} *
                              double{to_f32(b_[static_cast<std::size_t>(j * k + p)])};
          sum += term, size += std::abs(term);
        }
        ASSERT_NEAR(c[static_cast<std::size_t>(i * n + j)], sum, k * 0x1p-24 * size);
      }
    }
  }
}

TEST_P(EmulatedGemm, GivesTheSameBitsOnEverySeed) {
  const auto first = multiply(65, 63, 40, GemmMutation::kNone);
  for (std::uint64_t seed = 2; seed <= 8; ++seed) {
    emulated::gpu().options.seed = seed;
    EXPECT_EQ(multiply(65, 63, 40, GemmMutation::kNone), first);
  }
}

// Per tile, step of depth 32, warp and half of the depth: 2 x 4 products from 2 + 2 loads of four.
TEST_P(EmulatedGemm, CountsWhatItDoes) {
  auto& statistics = emulated::gpu().statistics;
  const auto before = statistics;
  multiply(128, 64, 128, GemmMutation::kNone);
  constexpr std::uint64_t kTiles = 2, kSteps = 4, kWarps = 4, kHalves = 2;
  constexpr auto kSlices = kTiles * kSteps * kWarps * kHalves;
  EXPECT_EQ(statistics.blocks - before.blocks, kTiles);
  EXPECT_EQ(statistics.matrix_products - before.matrix_products, kSlices * 8);
  EXPECT_EQ(statistics.matrix_loads - before.matrix_loads, kSlices * 4 * 4);
  // Two chunks of 64-byte rows share a line of the banks; the permutation keeps them apart.
  EXPECT_EQ(statistics.matrix_load_passes - before.matrix_load_passes, kSlices * 4 * 4);
  EXPECT_EQ(statistics.async_copies - before.async_copies, kTiles * kSteps * 2 * 64 * 4);
}

TEST_P(EmulatedGemm, IsStoppedWithoutItsWait) {
  expect_stopped(64, GemmMutation::kNoWait, "has not landed");
}

// Either the copies of another thread are not waited for yet, or they are but nothing says so.
TEST_P(EmulatedGemm, IsStoppedWithoutTheBarrierBeforeUse) {
  expect_stopped(64, GemmMutation::kNoBarrierBeforeUse, "race|has not landed|never written");
}

TEST_P(EmulatedGemm, IsStoppedWithoutTheBarrierAfterUse) {
  expect_stopped(128, GemmMutation::kNoBarrierAfterUse, "race");
}

INSTANTIATE_TEST_SUITE_P(Schedules, EmulatedGemm,
                         testing::Values(Schedule::kRandom, Schedule::kRunAhead),
                         [](const auto& one) {
                           return one.param == Schedule::kRandom ? "Random" : "RunAhead";
                         });

}  // namespace
}  // namespace coppice
