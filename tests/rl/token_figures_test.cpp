// Figures of tokens that two ranks computed in parts, made whole on both.
#include "rl/token_figures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "rl/example_groups.hpp"

namespace coppice {
namespace {

using test::group_of;
using testing::ElementsAre;

// Two ranks in one process: what is handed in here is summed with what the peer hands in.
class WithPeer final : public Communicator {
 public:
  explicit WithPeer(std::vector<double> peer) : peer_(std::move(peer)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<double> handed_in;

 private:
  void do_all_reduce(Stream&, TensorView data, ReduceOp) override {
    double* values = data.data<double>();
    handed_in.assign(values, values + data.numel());
    for (std::size_t i = 0; i < peer_.size(); ++i) values[i] += peer_[i];
  }
  void do_all_gather(Stream&, ConstTensorView, TensorView, std::span<const std::int64_t>) override {
  }
  void do_reduce_scatter(Stream&, ConstTensorView, TensorView,
                         std::span<const std::int64_t>) override {}
  void do_broadcast(Stream&, TensorView, int) override {}
  void do_barrier(Stream&) override {}

  std::vector<double> peer_;
};

// One group: responses [5, 6] and [7], token 6 outside of the loss.
std::vector<Group> groups() {
  auto groups = std::vector{group_of({1}, {{5, 6}, {7}})};
  groups[0].responses[0].loss_mask = {1, 0};
  return groups;
}

PackedBatch edges(std::vector<PredictionEdge> edges) {
  PackedBatch batch;
  batch.edges = std::move(edges);
  return batch;
}

const PredictionEdge kFirst{0, 5, 0, 0, 0}, kMasked{1, 6, 0, 0, 1}, kSecond{0, 7, 0, 1, 0};
const std::vector<double> kHalf = {-0.5}, kQuarter = {-0.25}, kOne = {1.0}, kTwo = {2.0};

// Layout of the message: log-probs, entropies and counts of the tokens with an edge.
TEST(TokenFigures, AreSummedOverTheRanksWithZerosWhereNothingWasComputed) {
  Stream stream{Device{}};
  TokenFigures figures(groups());
  EXPECT_TRUE(std::isnan(figures.logprobs(0, 1)[0]));
  figures.keep(edges({kFirst}), kHalf, kOne);
  WithPeer ranks({0, -0.25, 0, 2.0, 0, 1});
  figures.gather(stream, ranks, groups(), EdgeTokens::kInLoss);
  EXPECT_THAT(ranks.handed_in, ElementsAre(-0.5, 0, 1.0, 0, 1, 0));
  EXPECT_EQ(figures.logprobs(0, 0)[0], -0.5);
  EXPECT_EQ(figures.entropies(0, 0)[0], 1.0);
  EXPECT_EQ(figures.logprobs(0, 1)[0], -0.25);
  EXPECT_EQ(figures.entropies(0, 1)[0], 2.0);
  EXPECT_EQ(ranks.counter(Collective::kAllReduce).bytes, TokenFigures::gather_bytes(2));
}

// Seen red without the counts being taken back after a pass.
TEST(TokenFigures, OfAnEarlierPassAreNotHandedInAgain) {
  Stream stream{Device{}};
  TokenFigures figures(groups());
  figures.keep(edges({kFirst}), kHalf, kOne);
  WithPeer first({0, -0.25, 0, 2.0, 0, 1});
  figures.gather(stream, first, groups(), EdgeTokens::kInLoss);
  figures.keep(edges({kSecond}), kHalf, kTwo);  // the ranks have changed roles
  WithPeer second({-0.25, 0, 1.0, 0, 1, 0});
  figures.gather(stream, second, groups(), EdgeTokens::kInLoss);
  EXPECT_THAT(second.handed_in, ElementsAre(0, -0.5, 0, 2.0, 0, 1));
  EXPECT_EQ(figures.logprobs(0, 0)[0], -0.25);
  EXPECT_EQ(figures.logprobs(0, 1)[0], -0.5);
}

TEST(TokenFigures, ATokenComputedNotExactlyOnceIsRefused) {
  Stream stream{Device{}};
  const auto one_rank = make_self_communicator();
  TokenFigures twice(groups()), never(groups()), once(groups());
  for (TokenFigures* figures : {&twice, &twice, &never, &once})
    figures->keep(edges({kFirst}), kHalf, kOne);
  twice.keep(edges({kSecond}), kQuarter, kTwo);
  once.keep(edges({kSecond}), kQuarter, kTwo);
  EXPECT_THROW(twice.gather(stream, *one_rank, groups(), EdgeTokens::kInLoss), ContractError);
  EXPECT_THROW(never.gather(stream, *one_rank, groups(), EdgeTokens::kInLoss), ContractError);
  EXPECT_NO_THROW(once.gather(stream, *one_rank, groups(), EdgeTokens::kInLoss));
}

TEST(TokenFigures, ScoringNeedsTheTokensOutsideOfTheLossToo) {
  Stream stream{Device{}};
  const auto one_rank = make_self_communicator();
  TokenFigures figures(groups());
  figures.keep(edges({kFirst, kSecond}), std::vector{-0.5, -0.25}, std::vector{1.0, 2.0});
  EXPECT_THROW(figures.gather(stream, *one_rank, groups(), EdgeTokens::kAll), ContractError);
  figures.keep(edges({kMasked}), kHalf, kOne);
  EXPECT_NO_THROW(figures.gather(stream, *one_rank, groups(), EdgeTokens::kAll));
}

}  // namespace
}  // namespace coppice
