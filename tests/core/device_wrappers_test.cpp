// Each wrapper in device/ against its rule, worked out on the host from the instruction set's
// manual, not from the emulator. On the emulated device this checks the emulator; on a real one it
// checks the emulator's claim to be like it, and is the first thing to run there. Bit for bit, but
// for the approximate functions and the product's sums, whose bounds are stated.
//
// Seen red: the halves of a pair exchanged; ties rounded up; rows 8 to 15 of the product's first
// operand exchanged with its columns 8 to 15; a transposed load that is not; zeros of an invalid
// copy left out; shuffle_down that wraps around.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/convert.hpp"
#include "core/kernels/gemm_kernel.hpp"
#include "core/kernels/wrapper_kernels.hpp"
#include "core/rng.hpp"
#include "support/device_array.hpp"

namespace coppice {
namespace {

using test::DeviceArray;
using test::Function;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class DeviceWrappers : public testing::Test {
 protected:
  static std::vector<float> normals(std::string_view name, std::size_t count) {
    const RandomStream stream(3, name);
    std::vector<float> values;
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(stream.normal(i)));
    }
    return values;
  }

  // 0, 1, 2, ... scrambled so that neighbours differ in every bit.
  static std::uint32_t scrambled(std::size_t i) {
    return static_cast<std::uint32_t>((i + 1) * 0x9E3779B97F4A7C15ull >> 32);
  }

  std::vector<float> function_of(Function function, const std::vector<float>& in) {
    const DeviceArray<float> x(stream_, in);
    DeviceArray<float> y(stream_, in.size());
    test::launch_function(stream_, function, x.data(), y.data(), static_cast<int>(in.size()));
    return y.values();
  }

  // The first of `out` are these, NaN being equal to NaN.
  static void expect_first(const std::vector<float>& out, const std::vector<float>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(out[i] == expected[i] || (std::isnan(out[i]) && std::isnan(expected[i])))
          << i << ": " << out[i] << " for " << expected[i];
    }
  }

  Stream stream_{Device{DeviceKind::kCuda, 0}};
};

// What the instruction set says of cvt.rn.bf16x2: to nearest, ties to even; NaN is 0x7fff.
std::uint16_t nearest_bf16(float value) { return std::isnan(value) ? 0x7fff : to_bf16(value).bits; }

TEST_F(DeviceWrappers, ConvertBf16ToNearestEven) {
  std::vector<float> in;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {  // every bf16, and around each tie
    for (const std::uint32_t low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u}) {
      in.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  const auto count = in.size();
  const DeviceArray<float> x(stream_, in);
  DeviceArray<BF16> single(stream_, count);
  DeviceArray<std::uint32_t> pair(stream_, count);
  DeviceArray<float> back(stream_, count), low(stream_, count), high(stream_, count);
  test::launch_conversions(stream_, {x.data(), static_cast<int>(count), single.data(), pair.data(),
                                     back.data(), low.data(), high.data()});
  const auto singles = single.values();
  const auto pairs = pair.values();
  const auto backs = back.values(), lows = low.values(), highs = high.values();
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t own = nearest_bf16(in[i]), other = nearest_bf16(in[i ^ 1]);
    ASSERT_EQ(singles[i].bits, own) << std::hex << bits(in[i]);
    ASSERT_EQ(pairs[i], own | other << 16);
    ASSERT_EQ(bits(backs[i]), own << 16);
    ASSERT_EQ(bits(lows[i]), own << 16);
    ASSERT_EQ(bits(highs[i]), other << 16);
  }
}

// ex2.approx.ftz: relative error 2^-22 at most, subnormals are zero.
TEST_F(DeviceWrappers, RaiseTwoToAPower) {
  std::vector<float> in = {0, -0.0f, 1e-40f, -149, -200, 128, 1e30f, kInfinity, -kInfinity, kNaN};
  for (float x = -126; x < 127; x += 0.0625f) in.push_back(x), in.push_back(x + 0.03f);
  const auto out = function_of(Function::kExp2, in);
  expect_first(out, {1, 1, 1, 0, 0, kInfinity, kInfinity, kInfinity, 0, kNaN});
  for (std::size_t i = 10; i < in.size(); ++i) {
    const double exact = std::exp2(double{in[i]});
    ASSERT_NEAR(out[i], exact, 0x1p-22 * exact) << in[i];
  }
}

// lg2.approx.ftz: absolute error 2^-22 in (0.5, 2), relative 2^-22 elsewhere.
TEST_F(DeviceWrappers, TakeTheLogarithm) {
  std::vector<float> in = {0, -0.0f, 1e-40f, -1, kInfinity, kNaN, 1, 2, 1024};
  for (float x = 0x1p-120f; x < 0x1p120f; x *= 1.37f) in.push_back(x);
  for (float x = 0.5f; x < 2; x += 0.01f) in.push_back(x);
  const auto out = function_of(Function::kLog2, in);
  expect_first(out, {-kInfinity, -kInfinity, -kInfinity, kNaN, kInfinity, kNaN});
  for (std::size_t i = 6; i < in.size(); ++i) {
    const double exact = std::log2(double{in[i]});
    ASSERT_NEAR(out[i], exact, 0x1p-22 * std::max(1.0, std::abs(exact))) << in[i];
  }
}

// rsqrt.approx.ftz: relative error 2^-22 at most (the manual says 2^-22.9).
TEST_F(DeviceWrappers, TakeTheReciprocalRoot) {
  std::vector<float> in = {0, -0.0f, 1e-40f, -1, kInfinity, kNaN, 1, 4};
  for (float x = 0x1p-125f; x < 0x1p125f; x *= 1.37f) in.push_back(x);
  const auto out = function_of(Function::kRsqrt, in);
  expect_first(out, {kInfinity, -kInfinity, kInfinity, kNaN, 0, kNaN});
  for (std::size_t i = 6; i < in.size(); ++i) {
    const double exact = 1 / std::sqrt(double{in[i]});
    ASSERT_NEAR(out[i], exact, 0x1p-22 * exact) << in[i];
  }
}

// The sum is a tree: lanes 16 apart first, neighbours last, the same bits in every lane.
template <class T>
T tree_sum(std::vector<T> values) {
  for (std::size_t half = values.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

template <class T>
void expect_shuffles(Stream& stream, const std::vector<T>& in) {
  for (const auto& [mask, source, distance] :
       {std::array{1, 0, 1}, {16, 31, 16}, {31, 7, 31}, {5, 13, 0}}) {
    const DeviceArray<T> x(stream, in);
    DeviceArray<T> y(stream, 128);
    test::launch_shuffles(stream, test::Shuffles<T>{x.data(), y.data(), mask, source, distance});
    const auto out = y.values();
    const T sum = tree_sum(in);
    for (int lane = 0; lane < 32; ++lane) {
      const auto of = [&](int i) { return in[static_cast<std::size_t>(i)]; };
      const auto l = static_cast<std::size_t>(lane);
      EXPECT_EQ(out[l], of(lane ^ mask));
      EXPECT_EQ(out[32 + l], of(source));
      EXPECT_EQ(out[64 + l], of(lane + distance < 32 ? lane + distance : lane));
      EXPECT_EQ(out[96 + l], sum);
    }
  }
}

TEST_F(DeviceWrappers, ShuffleAndSumWithinAWarp) {
  const auto floats = normals("shuffle", 32);
  expect_shuffles(stream_, floats);
  expect_shuffles(stream_, std::vector<double>(floats.begin(), floats.end()));
  std::vector<std::int32_t> integers;
  for (std::size_t i = 0; i < 32; ++i) {
    integers.push_back(static_cast<std::int32_t>(scrambled(i) >> 6));  // their sum fits
  }
  expect_shuffles(stream_, integers);
}

TEST_F(DeviceWrappers, SumAndCompareWithinABlock) {
  for (const int threads : {32, 96, 256, 1024}) {
    const auto count = static_cast<std::size_t>(threads);
    const auto in = normals("block", count);
    const DeviceArray<float> x(stream_, in);
    DeviceArray<float> y(stream_, 2 * count);
    test::launch_block_sums(stream_, x.data(), y.data(), threads);
    const auto out = y.values();
    float sum = 0;
    for (std::size_t warp = 0; warp < count / 32; ++warp) {
      const auto begin = in.begin() + static_cast<std::ptrdiff_t>(32 * warp);
      const float part = tree_sum(std::vector<float>(begin, begin + 32));
      sum = warp == 0 ? part : sum + part;  // warps one after the other
    }
    const float most = *std::max_element(in.begin(), in.end());
    for (std::size_t t = 0; t < count; ++t) {
      ASSERT_EQ(out[t], sum);
      ASSERT_EQ(out[count + t], most);
    }
  }
}

TEST_F(DeviceWrappers, LoadMatricesAsTheProductWantsThem) {
  std::vector<std::uint16_t> in;
  for (std::size_t i = 0; i < 256; ++i) in.push_back(static_cast<std::uint16_t>(scrambled(i)));
  const auto element = [&](int matrix, int row, int column) -> std::uint32_t {
    return in[static_cast<std::size_t>((matrix * 8 + row) * 8 + column)];
  };
  for (const int rows_apart : {8, 24}) {
    const DeviceArray<std::uint16_t> x(stream_, in);
    DeviceArray<std::uint32_t> y(stream_, 256);
    test::launch_matrix_loads(stream_, x.data(), rows_apart, y.data());
    const auto out = y.values();
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, q = lane % 4 * 2;
      for (int m = 0; m < 4; ++m) {
        const auto at = static_cast<std::size_t>(lane * 4 + m);
        EXPECT_EQ(out[at], element(m, g, q) | element(m, g, q + 1) << 16);
        EXPECT_EQ(out[128 + at], element(m, q, g) | element(m, q + 1, g) << 16);
      }
    }
  }
}

struct Product {
  std::vector<float> result;
  std::vector<double> exact, size;  // the sum, and that of the terms' magnitudes
};

Product product_of(Stream& stream, const std::vector<float>& a, const std::vector<float>& b,
                   const std::vector<float>& d) {
  const auto to_bf16s = [](const std::vector<float>& values) {
    std::vector<BF16> converted;
    for (const float value : values) converted.push_back(to_bf16(value));
    return converted;
  };
  const auto a16 = to_bf16s(a), b16 = to_bf16s(b);
  const DeviceArray<BF16> on_device_a(stream, a16), on_device_b(stream, b16);
  DeviceArray<float> on_device_d(stream, d);
  test::launch_product(stream, on_device_a.data(), on_device_b.data(), on_device_d.data());
  Product product{on_device_d.values(), {}, {}};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      double sum = d[i * 8 + j], size = std::abs(sum);
      for (std::size_t k = 0; k < 16; ++k) {
        const double term = double{to_f32(a16[i * 16 + k])} * double{to_f32(b16[k * 8 + j])};
        sum += term, size += std::abs(term);
      }
      product.exact.push_back(sum), product.size.push_back(size);
    }
  }
  return product;
}

TEST_F(DeviceWrappers, MultiplyIntegersExactly) {
  std::vector<float> a, b, d;
  for (std::size_t i = 0; i < 256; ++i) a.push_back(static_cast<float>(scrambled(i) % 255) - 127);
  for (std::size_t i = 0; i < 128; ++i) b.push_back(static_cast<float>(scrambled(i + 256) % 255));
  for (std::size_t i = 0; i < 128; ++i) d.push_back(static_cast<float>(scrambled(i + 512) % 9999));
  const auto product = product_of(stream_, a, b, d);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(product.result[i], product.exact[i]);
}

// Sums of a product are f32, in an order and with a rounding (it may be towards zero) that no
// manual states: each of the 17 terms may lose a unit in the last place of the sum of magnitudes.
TEST_F(DeviceWrappers, MultiplyWithinTheRoundingOfF32) {
  const auto product = product_of(stream_, normals("a", 256), normals("b", 128), normals("d", 128));
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_NEAR(product.result[i], product.exact[i], 17 * 0x1p-23 * product.size[i]);
  }
}

TEST_F(DeviceWrappers, MultiplyNaNsAndInfinitiesIntoTheirRowsAndColumnsOnly) {
  auto a = normals("a", 256), b = normals("b", 128);
  a[3 * 16 + 5] = kNaN;
  b[7 * 8 + 2] = kInfinity;
  const auto product = product_of(stream_, a, b, std::vector<float>(128, 0));
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      const float value = product.result[i * 8 + j];
      EXPECT_EQ(std::isnan(value), i == 3) << i << "," << j;
      EXPECT_EQ(std::isinf(value), i != 3 && j == 2) << i << "," << j;
    }
  }
}

TEST_F(DeviceWrappers, CopyGroupsInOrderAndZerosForWhatIsNotValid) {
  for (const int groups : {1, 2, 5}) {
    const auto in = normals("copies", static_cast<std::size_t>(groups) * 256);
    const DeviceArray<float> x(stream_, in);
    DeviceArray<float> y(stream_, in.size());
    test::launch_copies(stream_, x.data(), y.data(), groups);
    const auto out = y.values();
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(out[i], i / 4 % 2 == 0 ? in[i] : 0) << groups << " " << i;
    }
  }
}

TEST_F(DeviceWrappers, ExchangeThroughBarriers) {
  std::vector<int> in;
  for (int i = 0; i < 128; ++i) in.push_back(1000 + i);
  const DeviceArray<int> x(stream_, in);
  DeviceArray<int> y(stream_, 128);
  test::launch_barriers(stream_, x.data(), y.data());
  const auto out = y.values();
  for (std::size_t t = 0; t < 128; ++t) {
    const std::size_t second = ((t ^ 1) + 64) % 128;
    EXPECT_EQ(out[t], in[second / 64 * 64 + (second + 32) % 64]);
  }
}

TEST_F(DeviceWrappers, MovePacksWhole) {
  constexpr int kCount = 1000;
  std::vector<BF16> in;
  for (std::size_t i = 0; i < 2 * kCount; ++i) {
    in.push_back({static_cast<std::uint16_t>(scrambled(i))});
  }
  const auto floats = normals("packs", kCount);
  const DeviceArray<BF16> x(stream_, in);
  const DeviceArray<float> x_f32(stream_, floats);
  DeviceArray<BF16> y(stream_, in.size());
  DeviceArray<float> y_f32(stream_, floats.size());
  test::launch_packs(stream_, x.data(), y.data(), x_f32.data(), y_f32.data(), kCount);
  const auto out = y.values();
  for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i].bits, in[i].bits) << i;
  EXPECT_EQ(y_f32.values(), floats);
}

TEST_F(DeviceWrappers, NumberThreadsXFirst) {
  DeviceArray<unsigned> y(stream_, 12 * 64 * 12);
  test::launch_indices(stream_, y.data());
  const auto out = y.values();
  for (unsigned block = 0; block < 12; ++block) {
    for (unsigned t = 0; t < 64; ++t) {
      const auto begin = out.begin() + (block * 64 + t) * 12;
      const std::vector<unsigned> expected = {
          t % 8, t / 8 % 4, t / 32, block % 3, block / 3 % 2, block / 6, 8, 4, 2, 3, 2, 2};
      ASSERT_EQ(std::vector<unsigned>(begin, begin + 12), expected);
    }
  }
}

TEST_F(DeviceWrappers, GiveABlockAllTheSharedMemoryItAsksFor) {
  const auto most = cuda::properties(stream_.device()).shared_bytes_per_block;
  EXPECT_GE(most, 99 * 1024);  // what every device has
  for (const std::int64_t bytes :
       {std::int64_t{1024}, std::int64_t{48 * 1024}, std::int64_t{48 * 1024 + 2}, most}) {
    DeviceArray<unsigned> y(stream_, 2);
    test::launch_shared_memory(stream_, bytes, y.data());
    const auto out = y.values();
    EXPECT_EQ(out[0], 0U);
    EXPECT_EQ(out[1], bytes);
  }
}

TEST_F(DeviceWrappers, HandOverLargeParametersWhole) {
  test::Large large;
  for (int i = 0; i < 256; ++i) large.values[i] = i * i;
  DeviceArray<int> y(stream_, 256);
  test::launch_large(stream_, large, y.data());
  for (int& value : large.values) value = -1;  // the launch has its own copy
  const auto out = y.values();
  for (int i = 0; i < 256; ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], i * i);
}

TEST_F(DeviceWrappers, MakeAMatrixMultiplication) {
  constexpr int kM = 130, kN = 70, kK = 104;
  std::vector<BF16> a, b;
  for (const float value : normals("a", kM * kK)) a.push_back(to_bf16(value));
  for (const float value : normals("b", kN * kK)) b.push_back(to_bf16(value));
  const DeviceArray<BF16> on_device_a(stream_, a), on_device_b(stream_, b);
  DeviceArray<float> c(stream_, kM * kN);
  test::launch_gemm(stream_, {on_device_a.data(), on_device_b.data(), c.data(), kM, kN, kK},
                    test::GemmMutation::kNone);
  const auto out = c.values();
  for (std::size_t i = 0; i < kM; ++i) {
    for (std::size_t j = 0; j < kN; ++j) {
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < kK; ++k) {
        const double term = double{to_f32(a[i * kK + k])} * double{to_f32(b[j * kK + k])};
        sum += term, size += std::abs(term);
      }
      ASSERT_NEAR(out[i * kN + j], sum, kK * 0x1p-23 * size);
    }
  }
}

}  // namespace
}  // namespace coppice
