#include "attention/support.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace coppice::test {

std::vector<reference::TreeSegment> group_tree(std::int64_t prompt,
                                               const std::vector<std::int64_t>& responses) {
  std::vector<reference::TreeSegment> tree{{prompt, -1}};
  for (const auto response : responses) tree.push_back({response, 0});
  return tree;
}

PrefixForest forest_of(const std::vector<reference::TreeSegment>& tree) {
  std::vector<SegmentSpec> specs;
  for (const auto& segment : tree) specs.push_back({segment.length, segment.parent});
  return PrefixForest(specs);
}

PrefixForest group(std::int64_t prompt, const std::vector<std::int64_t>& responses) {
  return forest_of(group_tree(prompt, responses));
}

std::vector<reference::TreeSegment> random_tree(std::uint64_t seed, int segments,
                                                std::int64_t longest) {
  const RandomStream stream(seed, "random_tree");
  std::uint64_t drawn = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(n), drawn++));
  };
  std::vector<reference::TreeSegment> tree;
  const auto size = 1 + below(segments);
  std::vector<int> open;  // the path that a next segment may hang on
  for (int s = 0; s < size; ++s) {
    const auto depth = static_cast<std::size_t>(below(std::ssize(open) + 1));
    open.resize(depth);
    tree.push_back({below(4) == 0 ? below(2) : 1 + below(longest), depth == 0 ? -1 : open.back()});
    open.push_back(s);
  }
  return tree;
}

std::int64_t count(const std::vector<std::vector<int>>& mask) {
  std::int64_t pairs = 0;
  for (const auto& row : mask) pairs += std::count(row.begin(), row.end(), 1);
  return pairs;
}

AttentionData attention_data(TestContext& test, DType dtype, std::int64_t queries,
                             std::int64_t keys, Heads heads, std::string_view name) {
  const auto [hq, hkv, dim] = heads;
  const auto random = [&](Shape shape, const char* what) {
    return test.random(dtype, shape, std::string(name) + "." + what);
  };
  const auto unset = [&](Shape shape) {
    return test.filled(dtype, shape, std::numeric_limits<double>::quiet_NaN());
  };
  return {random({queries, hq, dim}, "q"), random({keys, hkv, dim}, "k"),
          random({keys, hkv, dim}, "v"),   random({queries, hq, dim}, "d_out"),
          unset({queries, hq, dim}),       unset({hq, queries}),
          unset({queries, hq, dim}),       unset({keys, hkv, dim}),
          unset({keys, hkv, dim}),         1.0 / std::sqrt(static_cast<double>(dim))};
}

void run(ExecContext& ctx, const AttentionPlan& plan, AttentionData& data) {
  const KeySpace space{data.k, data.v};
  const KeySpaceGrad grad{data.dk, data.dv};
  prefix_attention_forward(ctx, plan, data.q, {&space, 1}, data.scale, data.out, data.softmax_lse);
  prefix_attention_backward(ctx, plan, data.q, {&space, 1}, data.out, data.softmax_lse, data.d_out,
                            data.scale, data.dq, {&grad, 1});
}

reference::AttentionProblem problem_of(const AttentionData& data,
                                       std::vector<std::vector<int>> mask) {
  return {data.q.shape()[0], data.k.shape()[0], data.q.shape()[1], data.k.shape()[1],
          data.q.shape()[2], data.scale,        values_of(data.q), values_of(data.k),
          values_of(data.v), std::move(mask)};
}

double Differences::largest() const {
  const double values[] = {out, lse, dq, dk, dv};
  for (const double value : values) {
    if (std::isnan(value)) return value;
  }
  return *std::max_element(std::begin(values), std::end(values));
}

Differences differences(const AttentionData& data, std::vector<std::vector<int>> mask) {
  const auto problem = problem_of(data, std::move(mask));
  const auto expected = reference::attention(problem);
  const auto gradients = reference::attention_gradients(problem, values_of(data.d_out));
  return {relative_difference(values_of(data.out), expected.out),
          relative_difference(values_of(data.softmax_lse), expected.lse),
          relative_difference(values_of(data.dq), gradients.dq),
          relative_difference(values_of(data.dk), gradients.dk),
          relative_difference(values_of(data.dv), gradients.dv)};
}

namespace {

/// Calls f(element) on every element of [rows, heads, dim] or [rows, columns], as T.
template <class T, class View, class F>
void for_each(const View& x, F&& f) {
  const auto middle = x.shape().rank() == 3 ? x.shape()[1] : 1;
  for (std::int64_t i = 0; i < x.shape()[0]; ++i) {
    for (std::int64_t j = 0; j < middle; ++j) {
      auto* row = x.template data<T>() + i * x.strides()[0] +
                  (x.shape().rank() == 3 ? j * x.strides()[1] : 0);
      for (std::int64_t d = 0; d < x.shape().back(); ++d) f(row[d]);
    }
  }
}

}  // namespace

void copy(ConstTensorView from, TensorView to) {
  COPPICE_CHECK(from.spec() == to.spec(), "{} copied to {}", from.shape(), to.shape());
  const auto values = values_of(from);
  visit_float(to.dtype(), [&]<class T>(TypeTag<T>) {
    std::size_t i = 0;
    for_each<T>(to, [&](T& element) { element = static_cast<T>(values[i++]); });
  });
}

void fill(TensorView x, double value) {
  visit_float(x.dtype(), [&]<class T>(TypeTag<T>) {
    for_each<T>(x, [&](T& element) { element = static_cast<T>(value); });
  });
}

std::string dtype_name(const testing::TestParamInfo<DType>& made_for) {
  return made_for.param == DType::kF64 ? "CpuF64" : "CpuF32";
}

double tolerance(DType dtype, std::int64_t terms) {
  const double epsilon = dtype == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                              : std::numeric_limits<float>::epsilon();
  return 8 * epsilon * std::sqrt(static_cast<double>(std::max<std::int64_t>(terms, 1)));
}

}  // namespace coppice::test
