// One edge at a time: a row with several edges is simply visited several times.
#include "reference/naive_logprob.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace coppice::reference {
namespace {

struct Row {
  Numbers log_p;
  double entropy;
};

Row row_of(const Numbers& logits, std::int64_t vocab, std::int64_t row, double temperature) {
  const auto begin = logits.begin() + row * vocab;
  Numbers z(begin, begin + vocab);
  for (double& value : z) value /= temperature;
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  Row result{z, 0};
  for (double& value : result.log_p) {
    value = (value - largest) - std::log(sum);
    if (std::isfinite(value)) result.entropy -= std::exp(value) * value;
  }
  return result;
}

}  // namespace

Logprobs logprobs(const Numbers& logits, std::int64_t vocab, const std::vector<LogprobEdge>& edges,
                  double temperature) {
  Logprobs result;
  for (const auto& edge : edges) {
    const Row row = row_of(logits, vocab, edge.row, temperature);
    result.logprobs.push_back(row.log_p[static_cast<std::size_t>(edge.target)]);
    result.entropies.push_back(row.entropy);
  }
  return result;
}

Numbers logprob_gradient(const Numbers& logits, std::int64_t vocab,
                         const std::vector<LogprobEdge>& edges, double temperature,
                         const Numbers& c, const Numbers& e) {
  Numbers gradient(logits.size());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const Row row = row_of(logits, vocab, edges[i].row, temperature);
    for (std::int64_t v = 0; v < vocab; ++v) {
      const double log_p = row.log_p[static_cast<std::size_t>(v)];
      if (!std::isfinite(log_p)) continue;
      const double p = std::exp(log_p), is_target = v == edges[i].target ? 1.0 : 0.0;
      gradient[static_cast<std::size_t>(edges[i].row * vocab + v)] +=
          (c[i] * (is_target - p) - e[i] * p * (log_p + row.entropy)) / temperature;
    }
  }
  return gradient;
}

}  // namespace coppice::reference
