#include "core/memory.hpp"

#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(Memory, CountsWhatIsHeldByNameAndRemembersThePeak) {
  Memory memory(Device{});
  {
    Buffer a = memory.allocate(100, "weights");
    Buffer b = memory.allocate(50, "weights");
    Buffer c = memory.allocate(7, "scratch");
    EXPECT_EQ(memory.current_bytes(), 157);
    EXPECT_EQ(memory.by_name().at("weights"), 150);
    b = Buffer();
    EXPECT_EQ(memory.by_name().at("weights"), 100);
    Buffer moved = std::move(a);
    EXPECT_EQ(memory.by_name().at("weights"), 100);
  }
  EXPECT_EQ(memory.current_bytes(), 0);
  EXPECT_EQ(memory.by_name().at("scratch"), 0);
  EXPECT_EQ(memory.peak_bytes(), 157);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes(), 0);
}

TEST(Memory, BlocksAreAlignedAndAnEmptyOneIsAllowed) {
  Memory memory(Device{});
  for (std::int64_t bytes : {1LL, 63LL, 4097LL, 5LL << 20}) {
    Buffer buffer = memory.allocate(bytes, "x");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U) << bytes;
  }
  EXPECT_EQ(memory.allocate(0, "x").bytes(), 0);
}

TEST(Memory, ABlockTheSystemDoesNotHaveIsADeviceErrorAndLeavesTheAccountAsItWas) {
  Memory memory(Device{});
  EXPECT_THROW(memory.allocate(std::int64_t{1} << 60, "too much"), DeviceError);
  EXPECT_THROW(memory.allocate(-1, "negative"), ContractError);
  EXPECT_EQ(memory.current_bytes(), 0);
}

}  // namespace
}  // namespace coppice
