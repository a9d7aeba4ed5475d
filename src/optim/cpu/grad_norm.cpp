// Plain loops: the sum runs at the speed of memory, and eight fixed lanes make it the same number
// on every kind of CPU.
#include "optim/grad_norm.hpp"

#include <array>
#include <vector>

#include "core/parallel_for.hpp"

namespace coppice::cpu {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

template <class T>
double squares_of(const T* x, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      lanes[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace

double sum_of_squares(ExecContext& ctx, std::span<const ConstTensorView> runs) {
  struct Block {
    ConstTensorView run;
    std::int64_t begin, count;
  };
  std::vector<Block> blocks;
  for (const ConstTensorView& run : runs) {
    for (std::int64_t begin = 0; begin < run.numel(); begin += kBlock) {
      blocks.push_back({run, begin, std::min(kBlock, run.numel() - begin)});
    }
  }
  std::vector<double> sums(blocks.size());
  parallel_for(ctx, std::ssize(blocks), [&](std::int64_t i) {
    const Block& block = blocks[static_cast<std::size_t>(i)];
    visit_float(block.run.dtype(), [&]<class T>(TypeTag<T>) {
      sums[static_cast<std::size_t>(i)] =
          squares_of(block.run.data<T>() + block.begin, block.count);
    });
  });
  double sum = 0;
  for (double part : sums) sum += part;
  return sum;
}

}  // namespace coppice::cpu
