#include "core/arena.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace coppice {
namespace {

TEST(Arena, LeasesDoNotOverlapAlsoAcrossBlocks) {
  Memory memory(Device{});
  Arena arena(memory, "activations");
  std::vector<TensorView> leases;
  for (std::int64_t n : {1, 100, 3, 5000, 17}) leases.push_back(arena.lease(DType::kF32, {n}));
  for (std::size_t i = 0; i < leases.size(); ++i) {
    for (std::int64_t j = 0; j < leases[i].numel(); ++j) {
      leases[i].data<float>()[j] = static_cast<float>(i);
    }
  }
  for (std::size_t i = 0; i < leases.size(); ++i) {
    for (std::int64_t j = 0; j < leases[i].numel(); ++j) {
      ASSERT_EQ(leases[i].data<float>()[j], static_cast<float>(i));
    }
  }
}

TEST(Arena, SettlesIntoOneBlockAndThenAllocatesNothing) {
  Memory memory(Device{});
  Arena arena(memory, "activations");
  const auto round = [&] {
    arena.lease(DType::kF32, {1000});
    arena.lease(DType::kF64, {1000});
    arena.lease(DType::kF32, {10});
    arena.reset();
  };
  round();
  const auto held = memory.current_bytes();
  EXPECT_EQ(held, arena.high_water_bytes());
  EXPECT_EQ(held, Arena::leased_bytes(DType::kF32, {1000}) +
                      Arena::leased_bytes(DType::kF64, {1000}) +
                      Arena::leased_bytes(DType::kF32, {10}));
  round();
  EXPECT_EQ(memory.current_bytes(), held);
  EXPECT_EQ(memory.peak_bytes(), held);
}

TEST(Arena, ReservedRoomIsEnoughForWhatWasReserved) {
  Memory memory(Device{});
  Arena arena(memory, "scratch");
  arena.reserve(Arena::leased_bytes(DType::kF32, {33}) * 2);
  const auto held = memory.current_bytes();
  arena.lease(DType::kF32, {33});
  arena.lease(DType::kF32, {33});
  EXPECT_EQ(memory.current_bytes(), held);
  EXPECT_THROW(arena.reserve(1 << 20), ContractError) << "leases would dangle";
}

TEST(Arena, AScopeGivesBackWhatItLeasedAndKeepsWhatWasThereBefore) {
  Memory memory(Device{});
  Arena arena(memory, "scratch");
  ScratchScope outer(arena);
  TensorView kept = outer.lease(DType::kF32, {4});
  std::memset(kept.bytes(), 0, 16);
  std::byte* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    ScratchScope inner(arena);
    TensorView lease = inner.lease(DType::kF32, {1000});
    std::memset(lease.bytes(), 0xab, 4000);
    if (i == 1) first = lease.bytes();
    if (i == 2) {
      EXPECT_EQ(lease.bytes(), first) << "the same room again";
    }
  }
  EXPECT_EQ(kept.data<float>()[3], 0.0F);
}

TEST(Arena, AnEmptyOuterScopeSurvivesTheSettlingOfAnInnerOne) {
  Memory memory(Device{});
  Arena arena(memory, "scratch");
  ScratchScope outer(arena);
  {
    ScratchScope inner(arena);
    inner.lease(DType::kF32, {10});
    inner.lease(DType::kF32, {10000});
  }
  TensorView later = outer.lease(DType::kF32, {10000});
  std::memset(later.bytes(), 0, 40000);
  EXPECT_EQ(memory.current_bytes(), arena.high_water_bytes());
}

// Seen red: rows left 4 KiB apart; the bytes of the gap left out of the plan.
TEST(Arena, RowsOfAMatrixAreNotAMultipleOfFourKibibytesApart) {
  Memory memory(Device{});
  struct Row {
    DType dtype;
    std::int64_t columns, stride;
  };
  for (const auto& [dtype, columns, stride] :
       {Row{DType::kF32, 1024, 1040}, Row{DType::kF32, 3072, 3088}, Row{DType::kF32, 1000, 1000},
        Row{DType::kF32, 1536, 1536}, Row{DType::kF64, 512, 520}, Row{DType::kF64, 500, 500},
        Row{DType::kF32, 0, 0}}) {
    Arena arena(memory, "activations");
    const TensorView matrix = arena.matrix(dtype, 3, columns);
    EXPECT_EQ(matrix.shape(), Shape({3, columns}));
    EXPECT_EQ(matrix.strides()[0], stride) << columns;
    EXPECT_EQ(arena.high_water_bytes(), Arena::matrix_bytes(dtype, 3, columns));
  }
}

}  // namespace
}  // namespace coppice
