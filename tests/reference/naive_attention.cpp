// See the header. Softmax gradients use the Jacobian p_j (delta_jk - p_k) summed plainly, not the
// saved-LSE form of the kernels.
#include "reference/naive_attention.hpp"

#include <cmath>
#include <cstddef>
#include <limits>

namespace coppice::reference {
namespace {

std::size_t at(std::int64_t row, std::int64_t head, std::int64_t d, std::int64_t heads,
               std::int64_t dim) {
  return static_cast<std::size_t>((row * heads + head) * dim + d);
}

bool sees(const AttentionProblem& p, std::int64_t row, std::int64_t key) {
  return p.mask[static_cast<std::size_t>(row)][static_cast<std::size_t>(key)] != 0;
}

/// Probabilities of one row and head over all keys; all zero where it sees none.
std::vector<double> probabilities(const AttentionProblem& p, std::int64_t row, std::int64_t head,
                                  double* lse) {
  const auto kv = head / (p.heads / p.kv_heads);
  std::vector<double> score(static_cast<std::size_t>(p.keys));
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < p.keys; ++j) {
    const auto key = static_cast<std::size_t>(j);
    if (!sees(p, row, j)) continue;
    for (std::int64_t d = 0; d < p.dim; ++d) {
      score[key] +=
          p.scale * p.q[at(row, head, d, p.heads, p.dim)] * p.k[at(j, kv, d, p.kv_heads, p.dim)];
    }
    if (score[key] > max) max = score[key];
  }
  double sum = 0;
  for (std::int64_t j = 0; j < p.keys; ++j) {
    if (sees(p, row, j)) sum += std::exp(score[static_cast<std::size_t>(j)] - max);
  }
  *lse = max + std::log(sum);
  std::vector<double> probability(score.size(), 0.0);
  for (std::int64_t j = 0; j < p.keys; ++j) {
    const auto key = static_cast<std::size_t>(j);
    if (sees(p, row, j)) probability[key] = std::exp(score[key] - max) / sum;
  }
  return probability;
}

}  // namespace

std::vector<std::vector<int>> visibility(const std::vector<TreeSegment>& segments) {
  std::vector<int> segment_of;  // of each row
  for (std::size_t s = 0; s < segments.size(); ++s) {
    for (std::int64_t i = 0; i < segments[s].length; ++i) segment_of.push_back(static_cast<int>(s));
  }
  const auto rows = segment_of.size();
  std::vector<std::vector<int>> mask(rows, std::vector<int>(rows, 0));
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t key = 0; key <= row; ++key) {
      for (int s = segment_of[row]; s >= 0; s = segments[static_cast<std::size_t>(s)].parent) {
        if (segment_of[key] == s) mask[row][key] = 1;
      }
    }
  }
  return mask;
}

AttentionResult attention(const AttentionProblem& p) {
  AttentionResult result;
  result.out.assign(p.q.size(), 0.0);
  result.lse.assign(static_cast<std::size_t>(p.heads * p.queries), 0.0);
  for (std::int64_t row = 0; row < p.queries; ++row) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const auto kv = head / (p.heads / p.kv_heads);
      auto& lse = result.lse[static_cast<std::size_t>(head * p.queries + row)];
      const auto probability = probabilities(p, row, head, &lse);
      for (std::int64_t j = 0; j < p.keys; ++j) {
        if (!sees(p, row, j)) continue;
        for (std::int64_t d = 0; d < p.dim; ++d) {
          result.out[at(row, head, d, p.heads, p.dim)] +=
              probability[static_cast<std::size_t>(j)] * p.v[at(j, kv, d, p.kv_heads, p.dim)];
        }
      }
    }
  }
  return result;
}

AttentionGradients attention_gradients(const AttentionProblem& p,
                                       const std::vector<double>& d_out) {
  AttentionGradients g;
  g.dq.assign(p.q.size(), 0.0);
  g.dk.assign(p.k.size(), 0.0);
  g.dv.assign(p.v.size(), 0.0);
  for (std::int64_t row = 0; row < p.queries; ++row) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const auto kv = head / (p.heads / p.kv_heads);
      double lse = 0;
      const auto probability = probabilities(p, row, head, &lse);
      // d_probability[j] = d_out . v_j, and d_score = J^T d_probability.
      std::vector<double> d_probability(probability.size(), 0.0);
      double weighted = 0;  // sum_k p_k d_probability_k
      for (std::int64_t j = 0; j < p.keys; ++j) {
        if (!sees(p, row, j)) continue;
        const auto key = static_cast<std::size_t>(j);
        for (std::int64_t d = 0; d < p.dim; ++d) {
          d_probability[key] +=
              d_out[at(row, head, d, p.heads, p.dim)] * p.v[at(j, kv, d, p.kv_heads, p.dim)];
        }
        weighted += probability[key] * d_probability[key];
      }
      for (std::int64_t j = 0; j < p.keys; ++j) {
        if (!sees(p, row, j)) continue;
        const auto key = static_cast<std::size_t>(j);
        const double d_score = probability[key] * (d_probability[key] - weighted);
        for (std::int64_t d = 0; d < p.dim; ++d) {
          const auto qi = at(row, head, d, p.heads, p.dim);
          const auto ki = at(j, kv, d, p.kv_heads, p.dim);
          g.dq[qi] += p.scale * d_score * p.k[ki];
          g.dk[ki] += p.scale * d_score * p.q[qi];
          g.dv[ki] += probability[key] * d_out[qi];
        }
      }
    }
  }
  return g;
}

}  // namespace coppice::reference
