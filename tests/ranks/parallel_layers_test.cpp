// What the grid of whole models cannot see of the layers: biases behind a row-parallel matrix, a
// head whose ranks hold few tokens or none, and attention over context ranks in trees deeper than
// prompt and responses.
//
// Seen red: the row-parallel bias added by every rank before the sum; ranks without tokens merged
// as zeros; keys of a grandparent left out of the plan.
#include <gtest/gtest.h>

#include "attention/row_partition.hpp"
#include "layers/column_parallel_linear.hpp"
#include "layers/row_parallel_linear.hpp"
#include "layers/self_attention.hpp"
#include "layers/support.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "ranks/ranks_session.hpp"
#include "reference/naive_layers.hpp"
#include "reference/naive_logprob.hpp"

namespace coppice {
namespace {

using test::relative_difference;
using test::TestContext;
using test::tolerance;
using test::values_of;
using Numbers = std::vector<double>;

/// All ranks of the job along one axis.
struct Axis {
  explicit Axis(const char* name, SequenceParallel sequence = SequenceParallel::kNo)
      : comm(test::ranks_session().split(0, name, {.seconds = 60})),
        tensor{*comm, *self, *self, sequence},
        context{*self, *comm, *self} {}
  std::int64_t size() const { return comm->size(); }
  std::int64_t rank() const { return comm->rank(); }

  std::unique_ptr<Communicator> self = make_self_communicator(), comm;
  ParallelContext tensor, context;
};

Numbers drawn(std::string_view name, std::int64_t count) {
  const RandomStream stream(3, name);
  Numbers values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(stream.normal(static_cast<std::uint64_t>(i)));
  return values;
}

/// Rows [begin, begin + rows) and columns [first, first + columns) of a matrix.
Numbers block(const Numbers& matrix, std::int64_t width, std::int64_t begin, std::int64_t rows,
              std::int64_t first, std::int64_t columns) {
  Numbers values;
  for (std::int64_t r = begin; r < begin + rows; ++r) {
    for (std::int64_t c = first; c < first + columns; ++c) {
      values.push_back(matrix[static_cast<std::size_t>(r * width + c)]);
    }
  }
  return values;
}

void set(Tensor& tensor, const Numbers& values) {
  COPPICE_CHECK(std::ssize(values) == tensor.numel(), "{} values for {}", values.size(),
                tensor.shape());
  std::copy(values.begin(), values.end(), tensor.view().data<double>());
}

void zero_gradients(LinearParameters& parameters) {
  std::vector<Parameter*> all;
  parameters.collect(all);
  for (Parameter* parameter : all)
    set(parameter->grad, Numbers(static_cast<std::size_t>(parameter->grad.numel())));
}

class ParallelLinear : public testing::TestWithParam<SequenceParallel> {};

TEST_P(ParallelLinear, EqualsTheReferenceWithTheBiasAddedOnce) {
  TestContext test(1);
  Axis axis("tensor", GetParam());
  const bool sharded = axis.tensor.shards_sequence();
  const auto n = axis.size(), r = axis.rank();
  const std::int64_t tokens = 3 * n, in = 2 * n, out = 5 * n;
  const Numbers x = drawn("x", tokens * in), w = drawn("w", out * in), b = drawn("b", out);
  const Numbers dy = drawn("dy", tokens * out);
  const Numbers y = reference::linear(x, w, b, in);
  const auto expected = reference::linear_gradients(x, w, dy, in);
  const auto t = sharded ? tokens / n : tokens,
             first = sharded ? r * t : 0;  // rows between linears
  const double bound = tolerance(DType::kF64, out * tokens);

  ColumnParallelLinear column(
      axis.tensor, {test.memory(), DType::kF64},
      {.name = "column", .in_features = in, .parts = {{"column", out}}, .bias = true});
  set(column.parameters().weight.value, block(w, in, r * out / n, out / n, 0, in));
  set(column.parameters().bias->value, block(b, 1, r * out / n, out / n, 0, 1));
  zero_gradients(column.parameters());
  Tensor some_x = test.from(DType::kF64, {t, in}, block(x, in, first, t, 0, in));
  Tensor some_dy =
      test.from(DType::kF64, {tokens, out / n}, block(dy, out, 0, tokens, r * out / n, out / n));
  Tensor some_y = test.zeros(DType::kF64, {tokens, out / n});
  column.forward(test.ctx(), some_x, some_y);
  column.backward(test.ctx(), some_x, some_dy, some_x.view());
  EXPECT_LE(relative_difference(values_of(some_y), block(y, out, 0, tokens, r * out / n, out / n)),
            bound);
  EXPECT_LE(relative_difference(values_of(some_x), block(expected.dx, in, first, t, 0, in)), bound);
  EXPECT_LE(relative_difference(values_of(column.parameters().weight.grad),
                                block(expected.dw, in, r * out / n, out / n, 0, in)),
            bound);
  EXPECT_LE(relative_difference(values_of(column.parameters().bias->grad),
                                block(expected.dbias, 1, r * out / n, out / n, 0, 1)),
            bound);

  RowParallelLinear row(axis.tensor, {test.memory(), DType::kF64},
                        {.name = "row", .in_features = in, .parts = {{"row", out}}, .bias = true});
  EXPECT_EQ(row.parameters().bias->parts[0].reduction,
            sharded ? ReductionGroup::kTensor : ReductionGroup::kNone);
  set(row.parameters().weight.value, block(w, in, 0, out, r * in / n, in / n));
  set(row.parameters().bias->value, b);
  zero_gradients(row.parameters());
  Tensor part_x =
      test.from(DType::kF64, {tokens, in / n}, block(x, in, 0, tokens, r * in / n, in / n));
  Tensor rows_dy = test.from(DType::kF64, {t, out}, block(dy, out, first, t, 0, out));
  Tensor rows_y = test.zeros(DType::kF64, {t, out});
  row.forward(test.ctx(), part_x, rows_y);
  row.backward(test.ctx(), part_x, rows_dy, part_x.view());
  EXPECT_LE(relative_difference(values_of(rows_y), block(y, out, first, t, 0, out)), bound);
  EXPECT_LE(
      relative_difference(values_of(part_x), block(expected.dx, in, 0, tokens, r * in / n, in / n)),
      bound);
  EXPECT_LE(relative_difference(values_of(row.parameters().weight.grad),
                                block(expected.dw, in, 0, out, r * in / n, in / n)),
            bound);
  // Under sequence parallelism the ranks' parts are summed by the reducer.
  if (sharded)
    axis.comm->all_reduce(test.ctx().stream, row.parameters().bias->grad, ReduceOp::kSum);
  EXPECT_LE(relative_difference(values_of(row.parameters().bias->grad), expected.dbias), bound);
}

INSTANTIATE_TEST_SUITE_P(Rows, ParallelLinear,
                         testing::Values(SequenceParallel::kNo, SequenceParallel::kYes),
                         [](const auto& rows) {
                           return std::string(rows.param == SequenceParallel::kYes ? "Sharded"
                                                                                   : "Whole");
                         });

// Vocabularies smaller than, equal to and not divisible by the number of ranks; padding is NaN.
TEST(ParallelLogprob, EqualsTheReferenceHoweverFewTokensARankHolds) {
  TestContext test(1);
  Axis axis("tensor");
  constexpr std::int64_t kRows = 4, kWidth = 3;
  for (const std::int64_t vocabulary : {1, 2, 3, 9, 17, 151}) {
    SCOPED_TRACE(vocabulary);
    const VocabShard shard = vocab_shard(axis.tensor, vocabulary);
    const Numbers x = drawn("x", kRows * kWidth), w = drawn("w", vocabulary * kWidth);
    const Numbers logits = reference::linear(x, w, {}, kWidth);
    std::vector<reference::LogprobEdge> list;
    HeadEdges edges;
    for (std::int64_t row = 0; row < kRows; ++row) {
      edges.rows.push_back(row);
      for (const std::int64_t target : {row * 7 % vocabulary, vocabulary - 1}) {
        edges.targets.push_back(static_cast<std::int32_t>(target));
        list.push_back({row, static_cast<std::int32_t>(target)});
      }
      edges.edge_begin.push_back(std::ssize(edges.targets));
    }
    const auto count = edges.edge_count();
    const Numbers c = drawn("c", count), e = drawn("e", count);
    const auto expected = reference::logprobs(logits, vocabulary, list, 0.7);
    const auto dz = reference::logprob_gradient(logits, vocabulary, list, 0.7, c, e);
    const auto gradients = reference::linear_gradients(x, w, dz, kWidth);

    Tensor weight = test.filled(DType::kF64, {shard.padded_rows, kWidth},
                                std::numeric_limits<double>::quiet_NaN());
    const Numbers own = block(w, kWidth, shard.begin, shard.size, 0, kWidth);
    std::copy(own.begin(), own.end(), weight.view().data<double>());
    const Tensor all_x = test.from(DType::kF64, {kRows, kWidth}, x);
    Tensor dx = test.filled(DType::kF64, {kRows, kWidth}, 9.0);
    Tensor dweight = test.zeros(DType::kF64, {shard.padded_rows, kWidth});
    Numbers found(static_cast<std::size_t>(count)), entropies(found.size());
    for (const std::int64_t chunk : {1, 3, 4}) {
      set(dweight, Numbers(static_cast<std::size_t>(dweight.numel())));
      logprob_forward_backward(
          test.ctx(), all_x, weight, edges, 0.7, chunk,
          [&](std::int64_t at, std::span<const double>, std::span<const double>,
              std::span<double> by_logprob, std::span<double> by_entropy) {
            std::copy_n(c.begin() + at, by_logprob.size(), by_logprob.begin());
            std::copy_n(e.begin() + at, by_entropy.size(), by_entropy.begin());
          },
          found, entropies, dx, dweight.view(), VocabRanks{*axis.comm, shard});
      axis.comm->all_reduce(test.ctx().stream, dx, ReduceOp::kSum);
      const double bound = tolerance(DType::kF64, vocabulary) * 8;
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected.logprobs[i], bound);
        EXPECT_NEAR(entropies[i], expected.entropies[i], bound);
      }
      const double scale = vocabulary == 1 ? 0.0 : 1.0;  // one token: every gradient is 0
      EXPECT_LE(relative_difference(values_of(dx), gradients.dx), vocabulary == 1 ? 1e-14 : bound);
      const auto padding =
          values_of(dweight.view().rows(shard.size, shard.padded_rows - shard.size));
      EXPECT_EQ(padding, Numbers(padding.size(), 0.0));
      EXPECT_LE(scale * relative_difference(
                            values_of(dweight.view().rows(0, shard.size)),
                            block(gradients.dw, kWidth, shard.begin, shard.size, 0, kWidth)),
                bound);
    }
  }
}

// Three generations, two trees, an empty segment; every rank against the whole on one rank.
TEST(ContextParallelAttention, EqualsOneRankInDeepTrees) {
  TestContext test(1);
  Axis axis("context");
  const std::vector<SegmentSpec> tree{{9, -1}, {4, 0},  {3, 1}, {5, 1}, {0, 1}, {7, 0},
                                      {1, 5},  {6, -1}, {2, 7}, {8, 8}, {1, 8}};
  const PrefixForest forest(tree);
  const auto tokens = forest.rows();
  const SelfAttentionConfig config{.name = "attention",
                                   .hidden_size = 6,
                                   .num_attention_heads = 4,
                                   .num_key_value_heads = 2,
                                   .head_dim = 4,
                                   .qk_norm = true};
  const auto positions = forest.positions();
  const RopeTable rope(test.memory(), DType::kF64, {}, config.head_dim, 64);
  const Tensor x = test.random(DType::kF64, {tokens, 6}, "x"),
               dy = test.random(DType::kF64, {tokens, 6}, "dy");

  struct Result {
    Numbers y, dx, dw;
  };
  const auto run = [&](const ParallelContext& parallel, const AttentionPlan& plan,
                       const std::vector<std::int64_t>& rows, const SharedRows& shared) {
    SelfAttention attention(parallel, {test.memory(), DType::kF64}, config);
    std::vector<Parameter*> parameters;
    attention.collect(parameters);
    test::fill(parameters, 0.8);
    const auto pick = [&](ConstTensorView from) {
      const auto values = values_of(from);
      Numbers some;
      for (const auto row : rows)
        some.insert(some.end(), values.begin() + row * 6, values.begin() + row * 6 + 6);
      return test.from(DType::kF64, {std::ssize(rows), 6}, some);
    };
    std::vector<std::int32_t> own_positions;
    for (const auto row : rows) own_positions.push_back(positions[static_cast<std::size_t>(row)]);
    Tensor own_x = pick(x), own_dy = pick(dy), y = test.zeros(DType::kF64, own_x.shape());
    Arena arena(test.memory(), "activations");
    SelfAttention::Activations acts;
    attention.lease_projections(arena, std::ssize(rows), acts);
    attention.lease_output(arena, std::ssize(rows), acts, shared.total());
    const PackedRows packed{plan, own_positions, rope, shared};
    attention.forward(test.ctx(), own_x, packed, acts, y);
    attention.backward(test.ctx(), own_x, packed, acts, own_dy, own_x);
    return Result{values_of(y), values_of(own_x),
                  values_of(attention.qkv().parameters().weight.grad)};
  };

  std::vector<std::int64_t> all_rows;
  for (std::int64_t row = 0; row < tokens; ++row) all_rows.push_back(row);
  test::OneRank one;
  const Result whole = run(one.context, AttentionPlan(forest), all_rows, {});

  const RowPartition partition(forest, axis.comm->size(), {.row = 10, .pair = 1});
  SharedRows shared;
  if (partition.shared_rows() > 0) {
    shared.rank_rows.assign(partition.rank_shared_rows().begin(),
                            partition.rank_shared_rows().end());
    for (const RowRun& part : partition.shared_runs_of(axis.comm->rank())) {
      for (std::int64_t i = 0; i < part.length; ++i) shared.rows.push_back(part.local_begin + i);
    }
  }
  const auto rows = partition.rows_of(axis.comm->rank());
  const Result part = run(axis.context, partition.plan_of(axis.comm->rank()), rows, shared);
  Numbers y, dx;
  for (const auto row : rows) {
    y.insert(y.end(), whole.y.begin() + row * 6, whole.y.begin() + row * 6 + 6);
    dx.insert(dx.end(), whole.dx.begin() + row * 6, whole.dx.begin() + row * 6 + 6);
  }
  EXPECT_LE(relative_difference(part.y, y), 1e-12);
  EXPECT_LE(relative_difference(part.dx, dx), 1e-12);
  Numbers dw = part.dw;
  axis.comm->all_reduce(test.ctx().stream, host_view(dw.data(), Shape{std::ssize(dw)}),
                        ReduceOp::kSum);
  EXPECT_LE(relative_difference(dw, whole.dw), 1e-12);
}

}  // namespace
}  // namespace coppice
