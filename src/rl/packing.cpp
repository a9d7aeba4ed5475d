// A micro-batch is first laid out whole; a rank's rows are then picked from that.
#include "rl/packing.hpp"

#include <algorithm>

namespace coppice {
namespace {

std::int64_t triangle(std::int64_t n) { return n * (n + 1) / 2; }

// All rows of a micro-batch, segment by segment.
struct Layout {
  std::vector<std::int32_t> token_ids;
  std::vector<SegmentSpec> segments;
  std::vector<SegmentTargets> targets;
};

Layout lay_out(std::span<const Group> groups, const Microbatch& microbatch, EdgeTokens edges) {
  Layout layout;
  const auto append = [&](const std::vector<std::int32_t>& ids) {
    layout.token_ids.insert(layout.token_ids.end(), ids.begin(), ids.end());
  };
  for (const MicrobatchPart& part : microbatch.parts) {
    const Group& group = groups[static_cast<std::size_t>(part.group)];
    const std::int64_t p = std::ssize(group.prompt_ids);
    const auto root = static_cast<std::int32_t>(layout.segments.size());
    if (part.grouped) {
      append(group.prompt_ids);
      layout.segments.push_back({p, -1});
      layout.targets.push_back({});
    }
    for (std::int32_t i = part.first_response; i < part.first_response + part.response_count; ++i) {
      const Response& response = group.responses[static_cast<std::size_t>(i)];
      if (!part.grouped) append(group.prompt_ids);
      append(response.ids);
      const std::int64_t r = std::ssize(response.ids);
      layout.segments.push_back(part.grouped ? SegmentSpec{r, root} : SegmentSpec{p + r, -1});
      SegmentTargets target{.group = part.group, .response = i};
      if (r > 0) target.first_target = part.grouped ? 0 : p;
      if (edges == EdgeTokens::kInLoss) target.is_target = response.loss_mask;
      layout.targets.push_back(target);
    }
  }
  return layout;
}

// One rank has all rows; alignment rows are roots of their own behind them.
PackedBatch whole_batch(Layout layout, std::int64_t row_multiple) {
  PackedBatch batch;
  const PrefixForest forest(layout.segments);
  batch.edges = prediction_edges(forest, layout.token_ids, layout.targets);
  batch.alignment_rows = alignment_rows(forest.rows(), row_multiple);
  batch.token_ids = std::move(layout.token_ids);
  batch.token_ids.resize(batch.token_ids.size() + static_cast<std::size_t>(batch.alignment_rows));
  layout.segments.resize(layout.segments.size() + static_cast<std::size_t>(batch.alignment_rows),
                         {1, -1});
  const PrefixForest aligned(layout.segments);
  batch.positions = aligned.positions();
  batch.plan = AttentionPlan(aligned);
  return batch;
}

PackedBatch batch_of_rank(const Layout& layout, const RowPlace& place) {
  PackedBatch batch;
  const PrefixForest forest(layout.segments);
  const RowPartition partition(forest, place.cp_size, place.costs);
  const auto rows = partition.rows_of(place.cp_rank);
  const auto positions = forest.positions();
  std::vector<std::int64_t> local_rows(static_cast<std::size_t>(forest.rows()), -1);
  for (const std::int64_t row : rows) {
    local_rows[static_cast<std::size_t>(row)] = std::ssize(batch.token_ids);
    batch.token_ids.push_back(layout.token_ids[static_cast<std::size_t>(row)]);
    batch.positions.push_back(positions[static_cast<std::size_t>(row)]);
  }
  // Rows keep packed order, so edges stay sorted.
  for (PredictionEdge edge : prediction_edges(forest, layout.token_ids, layout.targets)) {
    edge.row = local_rows[static_cast<std::size_t>(edge.row)];
    if (edge.row >= 0) batch.edges.push_back(edge);
  }
  batch.alignment_rows = alignment_rows(std::ssize(rows), place.row_multiple);
  batch.token_ids.resize(rows.size() + static_cast<std::size_t>(batch.alignment_rows));
  batch.positions.resize(batch.token_ids.size());
  batch.plan = partition.plan_of(place.cp_rank, batch.alignment_rows);
  if (partition.shared_rows() == 0) return batch;
  const auto shared = partition.rank_shared_rows();
  batch.shared.rank_rows.assign(shared.begin(), shared.end());
  for (const RowRun& run : partition.shared_runs_of(place.cp_rank))
    for (std::int64_t i = 0; i < run.length; ++i) batch.shared.rows.push_back(run.local_begin + i);
  return batch;
}

}  // namespace

bool has_edge(const Response& response, std::size_t token, EdgeTokens edges) {
  return edges == EdgeTokens::kAll || response.loss_mask[token] == 1;
}

RowPlace row_place(const ModelConfig& config, const ParallelContext& parallel) {
  const bool sharded = parallel.sequence_parallel == SequenceParallel::kYes;
  return {.cp_rank = parallel.context.rank(),
          .cp_size = parallel.context.size(),
          .row_multiple = sharded ? parallel.tensor.size() : 1,
          .costs = row_costs(config)};
}

std::int64_t alignment_rows(std::int64_t rows, std::int64_t row_multiple) {
  return (row_multiple - rows % row_multiple) % row_multiple;
}

PrefixForest forest_of(std::span<const Group> groups, const Microbatch& microbatch) {
  return PrefixForest(lay_out(groups, microbatch, EdgeTokens::kAll).segments);
}

PackedBatch pack(std::span<const Group> groups, const Microbatch& microbatch, EdgeTokens edges,
                 const RowPlace& place) {
  Layout layout = lay_out(groups, microbatch, edges);
  COPPICE_CHECK(std::ssize(layout.token_ids) == microbatch.work.rows, "{} rows packed, {} planned",
                layout.token_ids.size(), microbatch.work.rows);
  return place.cp_size == 1 ? whole_batch(std::move(layout), place.row_multiple)
                            : batch_of_rank(layout, place);
}

PackedWork work_of(const PackedBatch& batch) {
  // An alignment row sees itself.
  PackedWork work{batch.rows() - batch.alignment_rows,
                  batch.plan.visible_pairs() - batch.alignment_rows, 0};
  std::int64_t last = -1;
  for (const PredictionEdge& edge : batch.edges) {
    work.edge_rows += edge.row != last;
    last = edge.row;
  }
  return work;
}

void add(PackedWork& sum, const PackedWork& work) {
  sum.rows += work.rows;
  sum.visible_pairs += work.visible_pairs;
  sum.edge_rows += work.edge_rows;
}

PackedWork work_of(const Group& group, const MicrobatchPart& part, EdgeTokens edges) {
  PackedWork work;
  const std::int64_t p = std::ssize(group.prompt_ids);
  if (part.grouped) work = {p, triangle(p), 0};
  bool prompt_predicts = false;
  for (std::int64_t i = part.first_response; i < part.first_response + part.response_count; ++i) {
    const Response& response = group.responses[static_cast<std::size_t>(i)];
    const std::int64_t r = std::ssize(response.ids);
    work.rows += part.grouped ? r : p + r;
    work.visible_pairs += part.grouped ? r * p + triangle(r) : triangle(p + r);
    for (std::size_t t = 0; t < response.ids.size(); ++t) {
      if (!has_edge(response, t, edges)) continue;
      // The last prompt row predicts the first token of every response that shares it.
      const bool shares_row = t == 0 && part.grouped && prompt_predicts;
      if (!shares_row) ++work.edge_rows;
      prompt_predicts = prompt_predicts || t == 0;
    }
  }
  return work;
}

}  // namespace coppice
