#pragma once
// Equal groups of random tokens as one micro-batch, and the counts of its work, for benches of the
// model that need no rollouts.
#include "core/rng.hpp"
#include "model/flops.hpp"
#include "model/packed_batch.hpp"

namespace coppice::bench {

struct GroupShape {
  std::int64_t prefix, response, group_size;
  std::int64_t groups = 1;
};

/// Each prefix once (grouped), or once for each response. Edges are those of response tokens.
inline PackedBatch packed_groups(const GroupShape& shape, bool grouped, std::int64_t vocab_size) {
  const RandomStream random(1, "bench/tokens");
  const auto token = [&](std::int64_t text, std::int64_t i) {
    return static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab_size),
                                                  static_cast<std::uint64_t>((text << 32) + i)));
  };
  std::vector<SegmentSpec> specs;
  std::vector<SegmentTargets> targets;
  PackedBatch batch;
  const auto add_tokens = [&](std::int64_t text, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) batch.token_ids.push_back(token(text, i));
  };
  for (std::int64_t g = 0; g < shape.groups; ++g) {
    const auto prompt = g * (shape.group_size + 1), root = std::ssize(specs);
    if (grouped) {
      specs.push_back({shape.prefix, -1});
      targets.emplace_back();
      add_tokens(prompt, shape.prefix);
    }
    for (std::int64_t r = 0; r < shape.group_size; ++r) {
      SegmentTargets target{.group = static_cast<std::int32_t>(g),
                            .response = static_cast<std::int32_t>(r),
                            .first_target = 0};
      if (grouped) {
        specs.push_back({shape.response, static_cast<std::int32_t>(root)});
      } else {
        specs.push_back({shape.prefix + shape.response, -1});
        target.first_target = shape.prefix;
        add_tokens(prompt, shape.prefix);
      }
      targets.push_back(target);
      add_tokens(prompt + 1 + r, shape.response);
    }
  }
  const PrefixForest forest(specs);
  batch.positions = forest.positions();
  batch.plan = AttentionPlan(forest);
  batch.edges = prediction_edges(forest, batch.token_ids, targets);
  return batch;
}

inline PackedWork work_of(const PackedBatch& batch) {
  PackedWork work{batch.rows(), batch.plan.visible_pairs(), 0};
  std::int64_t last = -1;
  for (const auto& edge : batch.edges) {
    work.edge_rows += edge.row != last ? 1 : 0;
    last = edge.row;
  }
  return work;
}

}  // namespace coppice::bench
