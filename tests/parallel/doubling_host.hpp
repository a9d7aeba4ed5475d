#pragma once
// Stands for a communicator of host memory between two ranks, of which this is the second and the
// other holds the same values: sums double, gathers repeat, a broadcast brings what `sent` says.
// With it one process tests what is built on such a communicator.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/communicator.hpp"

namespace coppice::test {

class DoublingHost final : public Communicator {
 public:
  int rank() const override { return 1; }
  int size() const override { return 2; }
  float sent = 0;  ///< next broadcast's values
  int barriers = 0;

 private:
  static std::span<float> floats(TensorView tensor) {
    EXPECT_EQ(tensor.device(), Device{}) << "a host's communicator is handed host memory";
    return {tensor.data<float>(), static_cast<std::size_t>(tensor.numel())};
  }
  void do_all_reduce(Stream&, TensorView data, ReduceOp) override {
    for (float& value : floats(data)) value *= 2;
  }
  void do_all_gather(Stream&, ConstTensorView shard, TensorView whole,
                     std::span<const std::int64_t> rows) override {
    ASSERT_EQ(rows[0], rows[1]) << "the other rank holds the same";
    std::copy_n(shard.data<float>(), shard.numel(), floats(whole).data());
  }
  void do_reduce_scatter(Stream&, ConstTensorView whole, TensorView shard,
                         std::span<const std::int64_t> rows) override {
    const ConstTensorView mine = whole.rows(rows[0], rows[1]);
    std::transform(mine.data<float>(), mine.data<float>() + mine.numel(), floats(shard).data(),
                   [](float value) { return 2 * value; });
  }
  void do_broadcast(Stream&, TensorView data, int root) override {
    if (root != rank()) std::ranges::fill(floats(data), sent);
  }
  void do_barrier(Stream&) override { ++barriers; }
};

}  // namespace coppice::test
