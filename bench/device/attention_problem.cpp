#include "device/attention_problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <stdexcept>

namespace coppice::bench {
namespace {

AttentionPlan plan_of(const AttentionShape& shape) {
  std::vector<SegmentSpec> specs;
  for (std::int64_t g = 0; g < shape.groups; ++g) {
    const auto root = static_cast<std::int32_t>(specs.size());
    specs.push_back({shape.prefix, -1});
    for (std::int64_t r = 0; r < shape.group_size; ++r) specs.push_back({shape.response, root});
  }
  return AttentionPlan(PrefixForest(specs));
}

double dot(const double* a, const double* b, std::int64_t dim) {
  double sum = 0;
  for (std::int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

// As large as a dot product's rounding errors may be, in units of its terms'.
double dot_size(const double* a, const double* b, std::int64_t dim) {
  double squares = 0;
  for (std::int64_t d = 0; d < dim; ++d) squares += a[d] * b[d] * a[d] * b[d];
  return std::sqrt(squares);
}

// A sum of vectors in double, and how long they are together: the root of the sum of squares, which
// is what independent errors of the terms add up to.
struct Sum {
  std::vector<double> value;
  double size_squared = 0;

  explicit Sum(std::int64_t dim) : value(static_cast<std::size_t>(dim)) {}
  // value += weight * vector; `size` is the weight's own, before terms in it cancelled.
  void add(double weight, double size, const double* vector) {
    double length = 0;
    for (std::size_t d = 0; d < value.size(); ++d) {
      value[d] += weight * vector[d], length += vector[d] * vector[d];
    }
    size_squared += size * size * length;
  }
  // Probabilities, their gradients and results are rounded to bf16 (2^-9 each), probabilities are
  // of a function right to 2^-22 or so: 2^-6 leaves room for four of these in every term.
  void expect(const char* what, std::int64_t row, std::int64_t head,
              const std::vector<double>& found, std::int64_t begin) const {
    double error = 0;
    for (std::size_t d = 0; d < value.size(); ++d) {
      const double difference = found[static_cast<std::size_t>(begin) + d] - value[d];
      error += difference * difference;
    }
    const double bound = 0x1p-6 * std::sqrt(size_squared);
    if (!(std::sqrt(error) <= bound)) {  // also where it is NaN
      throw std::runtime_error(fmt::format("{} of row {}, head {} is {:.3g} off (bound {:.3g})",
                                           what, row, head, std::sqrt(error), bound));
    }
  }
};

}  // namespace

// What the device made of one head, on the host.
struct AttentionProblem::HeadResult {
  std::int64_t head;
  std::vector<double> out, lse, dq;  // [T, D], [T], [T, D]
  std::vector<double> dk, dv;        // [T, D] of its key head
};

AttentionProblem::AttentionProblem(DeviceRun& run, const AttentionShape& shape)
    : run_(run),
      shape_(shape),
      plan_(plan_of(shape)),
      scale_(1 / std::sqrt(static_cast<double>(shape.dim))) {
  const auto rows = shape.rows(), dim = shape.dim;
  const auto width = (shape.heads + 2 * shape.kv_heads) * dim;
  const auto tensor = [&](DType dtype, Shape of) { return Tensor(run.memory, dtype, of, "bench"); };
  qkv_ = tensor(DType::kBF16, {rows, width}), dqkv_ = tensor(DType::kBF16, {rows, width});
  out_ = tensor(DType::kBF16, {rows, shape.heads, dim});
  d_out_ = tensor(DType::kBF16, {rows, shape.heads, dim});
  lse_ = tensor(DType::kF32, {shape.heads, rows});
  qkv_numbers_.fill(run, qkv_);
  d_out_numbers_.fill(run, d_out_);
  const auto part = [&](Tensor& x, std::int64_t begin, std::int64_t heads) {
    return x.view().columns(begin * dim, heads * dim).reshape({rows, heads, dim});
  };
  const auto heads = shape.heads, kv = shape.kv_heads;
  q_ = part(qkv_, 0, heads), dq_ = part(dqkv_, 0, heads);
  space_ = {part(qkv_, heads, kv), part(qkv_, heads + kv, kv)};
  grad_ = {part(dqkv_, heads, kv), part(dqkv_, heads + kv, kv)};
}

void AttentionProblem::forward() {
  prefix_attention_forward(run_.ctx, plan_, q_, {&space_, 1}, scale_, out_, lse_);
}
void AttentionProblem::backward() {
  prefix_attention_backward(run_.ctx, plan_, q_, {&space_, 1}, out_, lse_, d_out_, scale_, dq_,
                            {&grad_, 1});
}
double AttentionProblem::forward_flops() const {
  return 4.0 * static_cast<double>(shape_.heads * shape_.dim) *
         static_cast<double>(plan_.visible_pairs());
}

std::vector<std::int64_t> AttentionProblem::seen_by(std::int64_t row) const {
  const auto group = row / shape_.rows_of_group() * shape_.rows_of_group();
  const auto place = row - group;
  std::vector<std::int64_t> keys;
  const auto prefix_end = std::min(place + 1, shape_.prefix);
  for (std::int64_t key = 0; key < prefix_end; ++key) keys.push_back(group + key);
  if (place >= shape_.prefix) {
    const auto response = (place - shape_.prefix) / shape_.response;
    for (auto key = shape_.prefix + response * shape_.response; key <= place; ++key) {
      keys.push_back(group + key);
    }
  }
  return keys;
}

std::vector<std::int64_t> AttentionProblem::seeing(std::int64_t key) const {
  const auto group = key / shape_.rows_of_group() * shape_.rows_of_group();
  const auto place = key - group;
  auto end = shape_.rows_of_group();  // of a prefix all behind it, of a response its own rest
  if (place >= shape_.prefix) {
    end = shape_.prefix + ((place - shape_.prefix) / shape_.response + 1) * shape_.response;
  }
  std::vector<std::int64_t> rows;
  for (auto row = place; row < end; ++row) rows.push_back(group + row);
  return rows;
}

const double* AttentionProblem::q(std::int64_t row, std::int64_t head) const {
  return qkv_numbers_.from(row * qkv_.shape()[1] + head * shape_.dim);
}
const double* AttentionProblem::k(std::int64_t row, std::int64_t kv_head) const {
  return q(row, shape_.heads + kv_head);
}
const double* AttentionProblem::v(std::int64_t row, std::int64_t kv_head) const {
  return q(row, shape_.heads + shape_.kv_heads + kv_head);
}
const double* AttentionProblem::d_out(std::int64_t row, std::int64_t head) const {
  return d_out_numbers_.from((row * shape_.heads + head) * shape_.dim);
}
double AttentionProblem::score(std::int64_t row, std::int64_t key, std::int64_t head) const {
  const auto kv_head = head / (shape_.heads / shape_.kv_heads);
  return scale_ * dot(q(row, head), k(key, kv_head), shape_.dim);
}

AttentionProblem::HeadResult AttentionProblem::fetch(std::int64_t head) {
  const auto kv_head = head / (shape_.heads / shape_.kv_heads);
  const auto rows = shape_.rows(), dim = shape_.dim;
  const auto columns = [&](ConstTensorView all, std::int64_t place) {
    return to_host(run_, all.columns(place * dim, dim));
  };
  const ConstTensorView out = out_.view().reshape({rows, shape_.heads * dim});
  return {.head = head,
          .out = columns(out, head),
          .lse = to_host(run_, lse_.view().rows(head, 1)),
          .dq = columns(dqkv_, head),
          .dk = columns(dqkv_, shape_.heads + kv_head),
          .dv = columns(dqkv_, shape_.heads + shape_.kv_heads + kv_head)};
}

// out, lse and dq of one row, from the keys that it sees.
void AttentionProblem::check_row(const HeadResult& result, std::int64_t row) const {
  const auto head = result.head, kv_head = head / (shape_.heads / shape_.kv_heads);
  const auto keys = seen_by(row);
  std::vector<double> scores;
  double most = -1e300, total = 0;
  for (const auto key : keys) {
    scores.push_back(score(row, key, head));
    most = std::max(most, scores.back());
  }
  for (const double s : scores) total += std::exp(s - most);
  const double lse = most + std::log(total);
  const double found = result.lse[static_cast<std::size_t>(row)];
  if (!(std::abs(found - lse) <= 0x1p-12)) {
    throw std::runtime_error(
        fmt::format("softmax_lse of row {}, head {} is {} and not {}", row, head, found, lse));
  }
  Sum out(shape_.dim), dq(shape_.dim);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double p = std::exp(scores[i] - lse);
    out.add(p, p, v(keys[i], kv_head));
  }
  const double delta = dot(d_out(row, head), out.value.data(), shape_.dim);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double p = std::exp(scores[i] - lse);
    const double dp = dot(d_out(row, head), v(keys[i], kv_head), shape_.dim);
    const double size = std::abs(dp) + dot_size(d_out(row, head), v(keys[i], kv_head), shape_.dim);
    dq.add(scale_ * p * (dp - delta), scale_ * p * size, k(keys[i], kv_head));
  }
  out.expect("out", row, head, result.out, row * shape_.dim);
  dq.expect("dq", row, head, result.dq, row * shape_.dim);
}

// dk and dv of one key, from the rows that see it in all query heads that share it. What rows need
// of their own (lse, out) is the device's; check_row has looked at it.
void AttentionProblem::check_key(const std::vector<HeadResult>& results, std::int64_t key) const {
  const auto kv_head = results.front().head / (shape_.heads / shape_.kv_heads);
  Sum dk(shape_.dim), dv(shape_.dim);
  for (const HeadResult& result : results) {
    const auto head = result.head;
    for (const auto row : seeing(key)) {
      const double p = std::exp(score(row, key, head) - result.lse[static_cast<std::size_t>(row)]);
      const double dp = dot(d_out(row, head), v(key, kv_head), shape_.dim);
      const double size = std::abs(dp) + dot_size(d_out(row, head), v(key, kv_head), shape_.dim);
      const double delta = dot(d_out(row, head),
                               &result.out[static_cast<std::size_t>(row * shape_.dim)], shape_.dim);
      dv.add(p, p, d_out(row, head));
      dk.add(scale_ * p * (dp - delta), scale_ * p * size, q(row, head));
    }
  }
  dk.expect("dk", key, kv_head, results.front().dk, key * shape_.dim);
  dv.expect("dv", key, kv_head, results.front().dv, key * shape_.dim);
}

void AttentionProblem::check() {
  forward();
  backward();
  const auto share = shape_.heads / shape_.kv_heads, rows = shape_.rows();
  const auto in_prefix = shape_.prefix / 2, last_of_prefix = shape_.prefix - 1;
  const std::set<std::int64_t> places{0,
                                      std::min<std::int64_t>(rows - 1, 63),
                                      in_prefix,
                                      last_of_prefix,
                                      std::min(rows - 1, shape_.prefix),
                                      rows - 1};
  for (const auto kv_head : std::set<std::int64_t>{0, shape_.kv_heads - 1}) {
    std::vector<HeadResult> results;
    for (std::int64_t i = 0; i < share; ++i) results.push_back(fetch(kv_head * share + i));
    for (const auto place : places) {
      check_row(results.front(), place);
      check_row(results.back(), place);
      check_key(results, place);
    }
  }
}

}  // namespace coppice::bench
