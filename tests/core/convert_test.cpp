// The oracle of a rounding is arithmetic in double: the two neighbours of a value are found among
// all 65,536 patterns and the nearer one, or the one with an even last bit, is the answer. Seen
// red: `>> 16` without the tie bit in to_bf16; 0xfff -> 0x1000 in to_f16; plain static_cast in
// place of to_f32_odd.
#include "core/convert.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/build_config.hpp"
#include "core/rng.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

// The value of a pattern from its fields, in double.
double decoded(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1u << mantissa_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1u ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

// The pattern nearest to |value|, ties to even, by search over the finite patterns.
std::uint32_t nearest_pattern(double value, int exponent_bits, int mantissa_bits) {
  const std::uint32_t infinite = ((1u << exponent_bits) - 1) << mantissa_bits;
  std::uint32_t low = 0, high = infinite;  // decoded(low) <= |value| < decoded(high)
  const double magnitude = std::fabs(value);
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (decoded(middle, exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = decoded(low, exponent_bits, mantissa_bits);
  // One step beyond the largest finite value stands for infinity when it comes to rounding.
  const double above = high == infinite ? std::ldexp(1.0, 1 << (exponent_bits - 1))
                                        : decoded(high, exponent_bits, mantissa_bits);
  if (std::isinf(magnitude))
    low = infinite;
  else if (magnitude - below > above - magnitude)
    low = high;
  else if (magnitude - below == above - magnitude)
    low += low & 1u;
  return low | (std::signbit(value) ? 1u << (exponent_bits + mantissa_bits) : 0u);
}

// Halfway points, their neighbours in double, ends of the range, and random values of all sizes.
std::vector<double> awkward_values(int exponent_bits, int mantissa_bits) {
  std::vector<double> values = {0.0,          -0.0,    std::numeric_limits<double>::infinity(),
                                1e-320,       1e308,   3.4028235677973366e38,
                                65519.999999, 65520.0, 65504.0};
  const std::uint32_t infinite = ((1u << exponent_bits) - 1) << mantissa_bits;
  for (std::uint32_t bits = 0; bits < infinite; bits += 7) {
    const double low = decoded(bits, exponent_bits, mantissa_bits);
    const double high = decoded(bits + 1, exponent_bits, mantissa_bits);
    if (std::isinf(high)) continue;
    const double half = (low + high) / 2;
    for (double value : {low, half, std::nextafter(half, low), std::nextafter(half, high)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  const RandomStream stream(1, "convert");
  for (std::uint64_t i = 0; i < 20000; ++i) {
    values.push_back(
        std::ldexp(stream.normal(2 * i), static_cast<int>(stream.below(300, 2 * i + 1)) - 150));
  }
  return values;
}

TEST(Convert, ReadsEveryHalfPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = decoded(bits, 5, 10);
    const float value = to_f32(F16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      EXPECT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      EXPECT_EQ(to_f16(value).bits, bits);
    }
  }
}

TEST(Convert, ReadsEveryBf16Pattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = decoded(bits, 8, 7);
    const float value = to_f32(BF16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      EXPECT_EQ(to_bf16(value).bits, bits);
    }
  }
}

TEST(Convert, RoundsToNearestEvenOnceFromSingleAndDouble) {
  for (double value : awkward_values(8, 7)) {
    ASSERT_EQ(to_bf16(value).bits, nearest_pattern(value, 8, 7)) << value;
    const auto single = static_cast<float>(value);
    ASSERT_EQ(to_bf16(single).bits, nearest_pattern(single, 8, 7)) << single;
  }
  for (double value : awkward_values(5, 10)) {
    ASSERT_EQ(to_f16(value).bits, nearest_pattern(value, 5, 10)) << value;
    const auto single = static_cast<float>(value);
    ASSERT_EQ(to_f16(single).bits, nearest_pattern(single, 5, 10)) << single;
  }
}

TEST(Convert, KeepsNotANumber) {
  const std::uint32_t payloads[] = {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xff800001u,
                                    0xffc12345u};
  for (std::uint32_t bits : payloads) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_f32(to_bf16(value)))) << bits;
    EXPECT_TRUE(std::isnan(to_f32(to_f16(value)))) << bits;
    EXPECT_TRUE(std::isnan(to_f32(to_bf16(static_cast<double>(value))))) << bits;
    EXPECT_TRUE(std::isnan(to_f32(to_f16(static_cast<double>(value))))) << bits;
  }
}

TEST(Convert, ArraysOfEveryPairEqualSingleValues) {
  const DType types[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
  for (std::int64_t count : {0, 1, 255, 256, 257, 1021}) {
    const RandomStream stream(2, "arrays");
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(100 * stream.normal(static_cast<std::uint64_t>(i)));
    }
    for (DType from : types) {
      // One byte beyond alignment: files give none.
      std::vector<std::byte> source(static_cast<std::size_t>(count * size_of(from) + 1));
      convert_elements(DType::kF64, reinterpret_cast<const std::byte*>(values.data()), from,
                       source.data() + 1, count);
      for (DType to : types) {
        std::vector<std::byte> whole(static_cast<std::size_t>(count * size_of(to) + 1));
        std::vector<std::byte> single(whole.size());
        convert_elements(from, source.data() + 1, to, whole.data() + 1, count);
        for (std::int64_t i = 0; i < count; ++i) {
          convert_elements(from, source.data() + 1 + i * size_of(from), to,
                           single.data() + 1 + i * size_of(to), 1);
        }
        EXPECT_EQ(whole, single) << name_of(from) << " to " << name_of(to) << ", " << count;
      }
    }
  }
}

TEST(Convert, EqualTypesAreCopiedBitForBit) {
  const std::uint16_t signalling[] = {0x7f81, 0xff81, 0x0001};
  std::uint16_t copy[3] = {};
  convert_elements(DType::kBF16, reinterpret_cast<const std::byte*>(signalling), DType::kBF16,
                   reinterpret_cast<std::byte*>(copy), 3);
  EXPECT_EQ(copy[0], 0x7f81);
  EXPECT_EQ(copy[1], 0xff81);
  EXPECT_EQ(copy[2], 0x0001);
}

class ConvertTensor : public testing::TestWithParam<Device> {
 protected:
  test::TestContext test_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Backends, ConvertTensor,
                         testing::ValuesIn(build::kWithCuda
                                               ? std::vector<Device>{{}, {DeviceKind::kCuda, 0}}
                                               : std::vector<Device>{{}}),
                         [](const auto& one) {
                           return one.param.kind == DeviceKind::kCpu ? "Cpu" : "Cuda";
                         });

// Sizes around the blocks that threads take, one with an infinity.
// Mutation seen red: the last block left out.
TEST_P(ConvertTensor, RoundsAndWidensEveryElement) {
  for (const std::int64_t size : {0, 1, 7, 8, 2047, 2048, 2056, 16383, 16384, 16385, 40001}) {
    SCOPED_TRACE(size);
    auto values = test::values_of(test_.random(DType::kF32, {size}, "source"));
    if (size == 2056) values[3] = std::numeric_limits<double>::infinity();
    const Tensor source = test_.from(DType::kF32, {size}, values);
    Tensor rounded = test_.zeros(DType::kBF16, {size}), widened = test_.zeros(DType::kF32, {size});
    convert(test_.ctx(), source, rounded);
    convert(test_.ctx(), rounded, widened);
    for (double& value : values) value = to_f32(to_bf16(static_cast<float>(value)));
    EXPECT_EQ(test::values_of(rounded), values);
    EXPECT_EQ(test::values_of(widened), values);
    Tensor copied = test_.zeros(DType::kBF16, {size});
    convert(test_.ctx(), rounded, copied);
    EXPECT_TRUE(test::bit_equal(copied, rounded));
  }
  const Tensor source = test_.zeros(DType::kF32, {3});
  Tensor target = test_.zeros(DType::kBF16, {2});
  EXPECT_THROW(convert(test_.ctx(), source, target), ContractError);
}

TEST(Convert, RefusesIntegers) {
  std::byte bytes[8];
  EXPECT_THROW(convert_elements(DType::kI32, bytes, DType::kF32, bytes + 4, 1), ContractError);
}

}  // namespace
}  // namespace coppice
