#include "attention/device_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/cuda/runtime.hpp"

namespace coppice::test {

std::vector<BF16> DeviceContext::random(std::int64_t count, std::string_view name) {
  const RandomStream stream(1, name);
  std::vector<BF16> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(to_bf16(stream.normal(static_cast<std::uint64_t>(i))));
  }
  return values;
}

Tensor DeviceContext::filled(DType dtype, Shape shape, const void* values) {
  Tensor x(memory_, dtype, shape, "test");
  if (x.numel() == 0) return x;
  cuda::copy(stream_.state(), {.kind = cuda::CopyKind::kToDevice,
                               .to = x.view().bytes(),
                               .from = values,
                               .bytes = x.size_bytes()});
  return x;
}

Tensor DeviceContext::bf16(Shape shape, const std::vector<BF16>& values) {
  return filled(DType::kBF16, shape, values.data());
}

Tensor DeviceContext::f32(Shape shape, const std::vector<float>& values) {
  return filled(DType::kF32, shape, values.data());
}

Tensor DeviceContext::unset(DType dtype, Shape shape) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(shape.numel() * size_of(dtype)),
                                     std::byte{0xff});
  return filled(dtype, shape, bytes.data());
}

std::vector<std::byte> DeviceContext::bytes_of(const Tensor& x) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(x.size_bytes()));
  if (bytes.empty()) return bytes;
  cuda::copy(stream_.state(), {.kind = cuda::CopyKind::kToHost,
                               .to = bytes.data(),
                               .from = x.view().bytes(),
                               .bytes = x.size_bytes()});
  stream_.synchronize();
  return bytes;
}

std::vector<double> DeviceContext::values_of(const Tensor& x) {
  return x.dtype() == DType::kBF16 ? bf16_values(bytes_of(x)) : f32_values(bytes_of(x));
}

DeviceProblem device_problem(std::int64_t queries, std::int64_t keys, Heads heads,
                             std::string_view name) {
  const auto random = [&](std::int64_t rows, std::int64_t of, const char* what) {
    return DeviceContext::random(rows * of * heads.dim, std::string(name) + "." + what);
  };
  return {heads,
          queries,
          keys,
          random(queries, heads.query, "q"),
          random(keys, heads.kv, "k"),
          random(keys, heads.kv, "v"),
          random(queries, heads.query, "d_out"),
          1.0 / std::sqrt(static_cast<double>(heads.dim))};
}

DeviceResult run(DeviceContext& device, const AttentionPlan& plan, const DeviceProblem& problem,
                 const AttentionOps& ops) {
  const auto& [query, kv, dim] = problem.heads;
  const Shape rows{problem.queries, query, dim}, keys{problem.keys, kv, dim};
  const Tensor q = device.bf16(rows, problem.q), d_out = device.bf16(rows, problem.d_out);
  const Tensor k = device.bf16(keys, problem.k), v = device.bf16(keys, problem.v);
  Tensor out = device.unset(DType::kBF16, rows), dq = device.unset(DType::kBF16, rows);
  Tensor dk = device.unset(DType::kBF16, keys), dv = device.unset(DType::kBF16, keys);
  Tensor lse = device.unset(DType::kF32, {query, problem.queries});
  const KeySpace space{k, v};
  const KeySpaceGrad grad{dk, dv};
  ops.forward(device.ctx(), plan, q, {&space, 1}, problem.scale, out, lse);
  ops.backward(device.ctx(), plan, q, {&space, 1}, out, lse, d_out, problem.scale, dq, {&grad, 1});
  return {device.bytes_of(out), device.bytes_of(lse), device.bytes_of(dq), device.bytes_of(dk),
          device.bytes_of(dv)};
}

std::vector<double> bf16_values(const std::vector<std::byte>& bytes) {
  std::vector<double> values;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(BF16)) {
    BF16 value{};
    std::memcpy(&value, bytes.data() + i, sizeof value);
    values.push_back(double{to_f32(value)});
  }
  return values;
}

std::vector<double> f32_values(const std::vector<std::byte>& bytes) {
  std::vector<double> values;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i, sizeof value);
    values.push_back(double{value});
  }
  return values;
}

reference::AttentionProblem problem_of(const DeviceProblem& problem,
                                       std::vector<std::vector<int>> mask) {
  const auto values = [](const std::vector<BF16>& numbers) {
    std::vector<double> result;
    for (const BF16 x : numbers) result.push_back(double{to_f32(x)});
    return result;
  };
  return {problem.queries,   problem.keys,   problem.heads.query, problem.heads.kv,
          problem.heads.dim, problem.scale,  values(problem.q),   values(problem.k),
          values(problem.v), std::move(mask)};
}

namespace {

struct Plain {
  std::vector<double> out, dq, dk, dv;
};

Plain plain_bf16_attention(const reference::AttentionProblem& p, const std::vector<double>& d_out) {
  const auto stored = [](double x) { return double{to_f32(to_bf16(x))}; };
  const auto at = [&](std::int64_t row, std::int64_t head, std::int64_t heads) {
    return static_cast<std::size_t>((row * heads + head) * p.dim);
  };
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t d = 0; d < p.dim; ++d) sum += a[d] * b[d];
    return sum;
  };
  const auto add = [&](double* to, double weight, const double* x) {
    for (std::int64_t d = 0; d < p.dim; ++d) to[d] += weight * x[d];
  };
  std::vector<double> out(p.q.size()), dq(p.q.size()), dk(p.k.size()), dv(p.k.size());
  const auto keys = static_cast<std::size_t>(p.keys);
  for (std::int64_t row = 0; row < p.queries; ++row) {
    const auto& sees = p.mask[static_cast<std::size_t>(row)];
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const auto kv = head / (p.heads / p.kv_heads);
      const auto q_at = at(row, head, p.heads);
      std::vector<double> probability(keys), d_probability(keys);
      double largest = -INFINITY, sum = 0, weighted = 0;
      for (std::size_t j = 0; j < keys; ++j) {
        if (sees[j] == 0) continue;
        const auto k_at = at(static_cast<std::int64_t>(j), kv, p.kv_heads);
        probability[j] = stored(p.scale * dot(&p.q[q_at], &p.k[k_at]));
        d_probability[j] = stored(dot(&d_out[q_at], &p.v[k_at]));
        largest = std::max(largest, probability[j]);
      }
      for (std::size_t j = 0; j < keys; ++j) {
        if (sees[j] == 0) continue;
        probability[j] = std::exp(probability[j] - largest);
        sum += probability[j];
      }
      for (std::size_t j = 0; j < keys; ++j) {
        if (sees[j] == 0) continue;
        probability[j] = stored(probability[j] / sum);
        weighted += probability[j] * d_probability[j];
      }
      for (std::size_t j = 0; j < keys; ++j) {
        if (sees[j] == 0) continue;
        const auto k_at = at(static_cast<std::int64_t>(j), kv, p.kv_heads);
        const double d_score = stored(probability[j] * (d_probability[j] - weighted));
        add(&out[q_at], probability[j], &p.v[k_at]);
        add(&dq[q_at], p.scale * d_score, &p.k[k_at]);
        add(&dk[k_at], p.scale * d_score, &p.q[q_at]);
        add(&dv[k_at], probability[j], &d_out[q_at]);
      }
    }
  }
  for (auto* result : {&out, &dq, &dk, &dv}) {
    for (double& x : *result) x = stored(x);
  }
  return {out, dq, dk, dv};
}

}  // namespace

Expectation expectation(const DeviceProblem& problem, std::vector<std::vector<int>> mask) {
  const auto p = problem_of(problem, std::move(mask));
  std::vector<double> d_out;
  for (const BF16 x : problem.d_out) d_out.push_back(double{to_f32(x)});
  Expectation e{reference::attention(p), reference::attention_gradients(p, d_out), {}};
  const auto plain = plain_bf16_attention(p, d_out);
  e.bounds = {2 * relative_difference(plain.out, e.result.out),
              tolerance(DType::kF32, p.dim + p.keys),
              2 * relative_difference(plain.dq, e.gradients.dq),
              2 * relative_difference(plain.dk, e.gradients.dk),
              2 * relative_difference(plain.dv, e.gradients.dv)};
  return e;
}

Errors errors(const DeviceResult& result, const Expectation& e) {
  return {relative_difference(bf16_values(result.out), e.result.out),
          relative_difference(f32_values(result.softmax_lse), e.result.lse),
          relative_difference(bf16_values(result.dq), e.gradients.dq),
          relative_difference(bf16_values(result.dk), e.gradients.dk),
          relative_difference(bf16_values(result.dv), e.gradients.dv)};
}

}  // namespace coppice::test
