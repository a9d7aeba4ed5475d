#pragma once
// Attention written from the formulas, in double, with an explicit mask. Slow and plain on purpose:
// it is what the kernels are measured against, so it shares nothing with them.
#include <cstdint>
#include <vector>

namespace coppice::reference {

/// One segment as a test states it: its length and its parent's index (-1: a root).
struct TreeSegment {
  std::int64_t length;
  int parent;
};

/// mask[row][key] is 1 where the row sees the key. Worked out pair by pair from the rule: the key
/// is not behind the row, and its segment is the row's own or one of its ancestors.
std::vector<std::vector<int>> visibility(const std::vector<TreeSegment>& segments);

/// Heads of one attention problem and its numbers, row major: q [T][Hq][D], k and v [K][Hkv][D].
struct AttentionProblem {
  std::int64_t queries, keys, heads, kv_heads, dim;
  double scale;
  std::vector<double> q, k, v;
  std::vector<std::vector<int>> mask;  // [T][K]
};

struct AttentionResult {
  std::vector<double> out;  // [T][Hq][D]
  std::vector<double> lse;  // [Hq][T], -inf where a row sees nothing
};

struct AttentionGradients {
  std::vector<double> dq;      // [T][Hq][D]
  std::vector<double> dk, dv;  // [K][Hkv][D]
};

AttentionResult attention(const AttentionProblem& problem);

/// Gradients of sum(d_out * out), by the textbook chain rule through the softmax.
AttentionGradients attention_gradients(const AttentionProblem& problem,
                                       const std::vector<double>& d_out);

}  // namespace coppice::reference
