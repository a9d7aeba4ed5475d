#include "core/cpu/huge_blocks.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "core/memory.hpp"

namespace coppice {
namespace {

// Seen red: places that begin 64 bytes before the last one ended; a block that is never freed.
TEST(HugeBlocks, HandOutPlacesThatDoNotOverlapAndEndWithTheirLastPlace) {
  cpu::HugeBlocks blocks;
  struct Place {
    std::byte* data;
    std::int64_t bytes;
  };
  std::vector<Place> places;
  for (int i = 0; i < 60; ++i) {
    const std::int64_t bytes = 65'537 + 100'003LL * (i % 40);
    std::byte* data = blocks.take(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
    std::memset(data, i, static_cast<std::size_t>(bytes));
    places.push_back({data, bytes});
  }
  EXPECT_EQ(blocks.block_count(), 2);
  for (int i = 0; i < 60; ++i) {
    const auto [data, bytes] = places[static_cast<std::size_t>(i)];
    EXPECT_EQ(data[0], static_cast<std::byte>(i));
    EXPECT_EQ(data[bytes - 1], static_cast<std::byte>(i));
  }
  for (const auto& [data, bytes] : places) EXPECT_TRUE(blocks.give_back(data));
  EXPECT_EQ(blocks.block_count(), 0);
  std::byte elsewhere{};
  EXPECT_FALSE(blocks.give_back(&elsewhere));
  EXPECT_NE(blocks.take(cpu::HugeBlocks::kLargest), nullptr) << "and begin anew";
}

TEST(HugeBlocks, ChangeNothingInTheAccountOfAMemory) {
  Memory memory(Device{});
  {
    Buffer first = memory.allocate(1 << 20, "weights", Lifetime::kRun);
    Buffer second = memory.allocate((1 << 20) + 4, "weights", Lifetime::kRun);
    Buffer large = memory.allocate(cpu::HugeBlocks::kLargest, "weights", Lifetime::kRun);
    EXPECT_EQ(memory.by_name().at("weights"), (2 << 20) + 4 + cpu::HugeBlocks::kLargest);
    std::memset(second.data(), 1, static_cast<std::size_t>(second.bytes()));
    first = Buffer();
    EXPECT_EQ(second.data()[0], std::byte{1}) << "its neighbour's end is not its own";
  }
  EXPECT_EQ(memory.current_bytes(), 0);
}

}  // namespace
}  // namespace coppice
