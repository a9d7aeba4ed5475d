// The launches of attention's backward: statistics of the query rows, then dK and dV by key tiles,
// then dQ by query tiles. Probabilities are computed in both; nothing is shared but what forward
// kept, so each sum has one owner and one order.
#include "attention/cuda/prefix_attention_backward_keys.cuh"
#include "attention/cuda/prefix_attention_backward_queries.cuh"
#include "attention/cuda/prefix_attention_call.hpp"

namespace coppice::cuda {
namespace {

dim3 blocks(std::int64_t count) { return dim3(static_cast<unsigned>(count)); }

template <class Tiling>
KeyTiling key_tiling(std::int64_t heads, std::int64_t kv_heads) {
  return {.key_rows = Tiling::kRows,
          .query_rows = Tiling::kQueries,
          .heads = heads / kv_heads,
          .kv_heads = kv_heads};
}

Shape statistics_shape(std::int64_t rows, std::int64_t heads) {
  return {rows * heads, sizeof(RowStatistics) / sizeof(float)};
}

template <class Tiling>
Shape partial_shape(const KeyWork& work, std::int64_t kv_heads) {
  return {work.slots, kv_heads, 2 * Tiling::kKeyElements};
}

template <int kDim>
void run(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
         std::span<const KeySpace> spaces, ConstTensorView out, ConstTensorView softmax_lse,
         ConstTensorView d_out, double softmax_scale, TensorView dq,
         std::span<const KeySpaceGrad> grads) {
  using Queries = BackwardQueriesTiling<kDim>;
  using Keys = BackwardKeysTiling<kDim>;
  const auto rows = q.shape()[0], heads = q.shape()[1];
  const auto kv_heads = spaces.empty() ? heads : spaces[0].k.shape()[1];
  const int heads_per_kv = static_cast<int>(heads / kv_heads);
  const auto scale = static_cast<float>(softmax_scale);

  const QueryWork query_work = list_query_work(plan, Queries::kRows);
  const KeyWork key_work = list_key_work(plan, learning(grads), key_tiling<Keys>(heads, kv_heads));
  ScratchScope scratch(ctx.scratch);
  DeviceLists lists;
  const auto space_list = lists.add(space_views(spaces));
  const auto grad_list = lists.add(space_grad_views(grads));
  const auto query_items = lists.add(query_work.items), key_pieces = lists.add(query_work.pieces);
  const auto key_items = lists.add(key_work.items), query_pieces = lists.add(key_work.pieces);
  const auto sums = lists.add(key_work.sums);
  lists.upload(ctx, scratch);
  auto* statistics = reinterpret_cast<RowStatistics*>(
      scratch.lease(DType::kF32, statistics_shape(rows, heads)).bytes());
  float* partial = reinterpret_cast<float*>(
      scratch.lease(DType::kF32, partial_shape<Keys>(key_work, kv_heads)).bytes());

  const auto q_rows = head_rows(q, "q"), d_out_rows = head_rows(d_out, "d_out");
  device::launch(ctx.stream,
                 {.grid = blocks((rows * heads + kStatisticsWarps - 1) / kStatisticsWarps),
                  .block = dim3(32 * kStatisticsWarps)},
                 prefix_attention_statistics_kernel<kDim>,
                 StatisticsArgs{head_rows(out, "out"), d_out_rows, softmax_lse.data<float>(),
                                softmax_lse.strides()[0], statistics, static_cast<int>(rows),
                                static_cast<int>(heads)});
  device::launch(ctx.stream,
                 {.grid = blocks(std::ssize(key_work.items) * kv_heads),
                  .block = dim3(Keys::kThreads),
                  .shared_bytes = kBackwardKeysSharedBytes<Keys>},
                 prefix_attention_backward_keys_kernel<Keys>,
                 BackwardKeysArgs{q_rows, d_out_rows, statistics, lists.at<SpaceView>(space_list),
                                  lists.at<SpaceGradView>(grad_list), lists.at<KeyItem>(key_items),
                                  lists.at<QueryPiece>(query_pieces), partial,
                                  static_cast<int>(heads), heads_per_kv, scale});
  device::launch(
      ctx.stream,
      {.grid = blocks(std::ssize(key_work.sums) * kv_heads * 2), .block = dim3(kSlotSumThreads)},
      prefix_attention_slot_sum_kernel<kDim, Keys::kRows>,
      SlotSumArgs{lists.at<SpaceGradView>(grad_list), lists.at<SlotSum>(sums), partial,
                  static_cast<int>(kv_heads)});
  device::launch(ctx.stream,
                 {.grid = blocks(std::ssize(query_work.items) * heads),
                  .block = dim3(Queries::kThreads),
                  .shared_bytes = kBackwardQueriesSharedBytes<Queries>},
                 prefix_attention_backward_queries_kernel<Queries>,
                 BackwardQueriesArgs{
                     q_rows, d_out_rows, head_rows(dq, "dq"), statistics,
                     lists.at<SpaceView>(space_list), lists.at<QueryItem>(query_items),
                     lists.at<KeyPiece>(key_pieces), static_cast<int>(heads), heads_per_kv, scale});
}

}  // namespace

void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads) {
  visit_head_dim(q.shape()[2], [&](auto dim) {
    run<dim()>(ctx, plan, q, spaces, out, softmax_lse, d_out, softmax_scale, dq, grads);
  });
}

std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                     std::int64_t kv_heads, std::int64_t dim) {
  return visit_head_dim(dim, [&](auto head_dim) {
    using Keys = BackwardKeysTiling<head_dim()>;
    const QueryWork queries = list_query_work(plan, BackwardQueriesTiling<head_dim()>::kRows);
    const std::vector<char> all(static_cast<std::size_t>(plan.space_count()), 1);
    const KeyWork keys = list_key_work(plan, all, key_tiling<Keys>(heads, kv_heads));
    return DeviceLists::leased_bytes(
               DeviceLists::padded_bytes<SpaceView>(plan.space_count()) +
               DeviceLists::padded_bytes<SpaceGradView>(plan.space_count()) +
               DeviceLists::padded_bytes<QueryItem>(std::ssize(queries.items)) +
               DeviceLists::padded_bytes<KeyPiece>(std::ssize(queries.pieces)) +
               DeviceLists::padded_bytes<KeyItem>(std::ssize(keys.items)) +
               DeviceLists::padded_bytes<QueryPiece>(std::ssize(keys.pieces)) +
               DeviceLists::padded_bytes<SlotSum>(std::ssize(keys.sums))) +
           Arena::leased_bytes(DType::kF32, statistics_shape(plan.query_rows(), heads)) +
           Arena::leased_bytes(DType::kF32, partial_shape<Keys>(keys, kv_heads));
  });
}

}  // namespace coppice::cuda
