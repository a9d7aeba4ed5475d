#pragma once
// How much work and weight a model is, from its config alone: the counts that metrics, plan, MFU
// and predicted speed-ups all take from here, so that they cannot disagree.
#include <cstdint>

#include "attention/row_partition.hpp"
#include "model/model_config.hpp"

namespace coppice {

/// What a packing of a batch makes the model do.
struct PackedWork {
  std::int64_t rows = 0;           ///< packed rows
  std::int64_t visible_pairs = 0;  ///< (query, key) pairs of one layer and head
  std::int64_t edge_rows = 0;      ///< distinct rows with a prediction edge
};

/// Weights of all layers' linears (q, k, v, o, gate, up, down), without biases: N_lin.
std::int64_t linear_weights(const ModelConfig& config);

/// Elements of all parameters; a tied embedding counts once.
std::int64_t parameter_count(const ModelConfig& config);

/// Matrix-multiply FLOPs of one forward: 2 N_lin rows + 4 Hq D L visible_pairs + 2 V hidden
/// edge_rows. In double, exact up to 2^53.
double forward_flops(const ModelConfig& config, const PackedWork& work);

/// What a row and a visible pair cost a layer, in FLOPs of a forward; the head is left out.
RowCosts row_costs(const ModelConfig& config);

/// Forward and backward, 3 times the forward. Recompute, head passes and savings do not count.
double executed_flops(const ModelConfig& config, const PackedWork& work);

/// Rows and pairs of one group whose G responses of R tokens follow a prefix of P tokens, with the
/// prefix once (grouped) or G times (repeated). Edges are those of response tokens.
PackedWork grouped_work(std::int64_t prefix, std::int64_t response, std::int64_t group_size);
PackedWork repeated_work(std::int64_t prefix, std::int64_t response, std::int64_t group_size);

/// FLOPs of repeated over FLOPs of grouped: the ideal speed-up.
double speedup_bound(const ModelConfig& config, std::int64_t prefix, std::int64_t response,
                     std::int64_t group_size);

}  // namespace coppice
