#include "rl/packing_cost.hpp"

namespace coppice {
namespace {

// Measured with bench/sharing_bench (docs/benchmarks/sharing.md) and turned into FLOPs by the rate
// at which the same pass runs. A range costs a head the calls for one more tile, forward and
// backward; a row behind a prefix costs as if the prefix had 16 more keys, for tiles are made up to
// whole vectors. Both matter to tiny models and short prompts only.
constexpr double kFlopsPerRange = 30e3;
constexpr std::int64_t kKeysPerSeam = 16;

}  // namespace

PackingCost packing_cost(const ModelConfig& config) {
  const auto heads = static_cast<double>(config.num_hidden_layers * config.num_attention_heads);
  const PackedWork keys_of_a_row{.visible_pairs = kKeysPerSeam};
  return {[&config](const PackedWork& work) { return executed_flops(config, work); },
          {.per_range = heads * kFlopsPerRange, .per_row = executed_flops(config, keys_of_a_row)}};
}

}  // namespace coppice
