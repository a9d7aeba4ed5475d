// Seen red: index in place of index + 1; the outer axes of a rectangle taken in the wrong order.
#include "checkpoint/element_checksum.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "core/rng.hpp"

namespace coppice {
namespace {

TEST(ElementChecksum, OfEqualElementsIsTheSumOfSplitMix64sSequence) {
  // SplitMix64 from seed 1234567, as published (Rosetta Code, "Pseudo-random numbers/Splitmix64").
  const std::uint64_t sequence[] = {6457827717110365317u, 3203168211198807973u,
                                    9817491932198370423u, 4593380528125082431u,
                                    16408922859458223821u};
  const std::vector<std::uint64_t> elements(5, 1234567);
  const auto* bytes = reinterpret_cast<const std::byte*>(elements.data());
  std::uint64_t sum = 0;
  for (int count = 0; count <= 5; ++count) {
    EXPECT_EQ(element_checksum(bytes, 8, 0, count), sum);
    if (count < 5) sum += sequence[count];
  }
  EXPECT_EQ(element_checksum(bytes, 8, 3, 2), sequence[3] + sequence[4]);
  const std::vector<std::uint32_t> narrow(5, 1234567);
  EXPECT_EQ(element_checksum(reinterpret_cast<const std::byte*>(narrow.data()), 4, 0, 5), sum);
}

TEST(ElementChecksum, SeesEveryFlippedBitAndEverySwap) {
  std::vector<std::uint16_t> elements(64);
  const RandomStream stream(1, "checksum");
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<std::uint16_t>(stream.bits(i));
  }
  const auto sum = [&] {
    return element_checksum(reinterpret_cast<const std::byte*>(elements.data()), 2, 7, 64);
  };
  const std::uint64_t right = sum();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    for (int bit = 0; bit < 16; ++bit) {
      elements[i] = static_cast<std::uint16_t>(elements[i] ^ (1 << bit));
      EXPECT_NE(sum(), right);
      elements[i] = static_cast<std::uint16_t>(elements[i] ^ (1 << bit));
    }
    if (i > 0) {
      std::swap(elements[i], elements[i - 1]);
      EXPECT_NE(sum(), right);
      std::swap(elements[i], elements[i - 1]);
    }
  }
  EXPECT_EQ(sum(), right);
}

// Cuts a tensor into rectangles along every pair of axes; the parts add up to the whole.
TEST(ElementChecksum, OfRectanglesAddsUpToTheWholes) {
  for (const Shape& shape :
       {Shape{7}, Shape{5, 3}, Shape{3, 4, 5}, Shape{2, 3, 4, 5}, Shape{4, 1}}) {
    const auto numel = static_cast<std::size_t>(shape.numel());
    std::vector<std::uint32_t> whole(numel);
    for (std::size_t i = 0; i < numel; ++i)
      whole[i] = static_cast<std::uint32_t>(i * i * 2654435761u);
    const std::uint64_t expected =
        element_checksum(reinterpret_cast<const std::byte*>(whole.data()), 4, 0, shape.numel());
    for (int axis = 0; axis < shape.rank(); ++axis) {
      std::uint64_t sum = 0;
      for (std::int64_t begin = 0; begin < shape[axis]; begin += 2) {
        Shard shard = Shard::whole(shape);
        shard.global_offset = shard.global_offset.with(axis, begin);
        shard.local_shape = shape.with(axis, std::min<std::int64_t>(2, shape[axis] - begin));
        // The rectangle's elements, picked one by one by their coordinates.
        std::vector<std::uint32_t> part;
        for (std::int64_t i = 0; i < shape.numel(); ++i) {
          std::int64_t rest = i, at = 0;
          for (int a = shape.rank() - 1; a >= axis; --a) {
            at = rest % shape[a];
            rest /= shape[a];
          }
          if (at >= begin && at < begin + 2) part.push_back(whole[static_cast<std::size_t>(i)]);
        }
        const std::int64_t rows = shard.local_shape[0];
        const std::int64_t row = std::ssize(part) / rows;
        for (std::int64_t r = 0; r < rows; ++r) {
          sum += rectangle_checksum(reinterpret_cast<const std::byte*>(part.data() + r * row), 4,
                                    shard, r, 1);
        }
        EXPECT_EQ(
            rectangle_checksum(reinterpret_cast<const std::byte*>(part.data()), 4, shard, 0, rows),
            [&] {
              std::uint64_t by_rows = 0;
              for (std::int64_t r = 0; r < rows; ++r) {
                by_rows += rectangle_checksum(
                    reinterpret_cast<const std::byte*>(part.data() + r * row), 4, shard, r, 1);
              }
              return by_rows;
            }());
      }
      EXPECT_EQ(sum, expected) << shape.to_string() << " along " << axis;
    }
  }
}

TEST(ElementChecksum, OfAScalarHasIndexZero) {
  const std::uint64_t element = 1234567;
  const auto* bytes = reinterpret_cast<const std::byte*>(&element);
  EXPECT_EQ(rectangle_checksum(bytes, 8, Shard::whole(Shape{}), 0, 1), 6457827717110365317u);
}

}  // namespace
}  // namespace coppice
