// The launch of attention's forward. Lists of work are made from the plan on the host and copied
// with the call; see prefix_attention_work.hpp and prefix_attention_forward.cuh.
#include "attention/cuda/prefix_attention_forward.cuh"

#include "attention/cuda/prefix_attention_call.hpp"

namespace coppice::cuda {
namespace {

template <int kDim>
void run(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
         std::span<const KeySpace> spaces, double softmax_scale, TensorView out,
         TensorView softmax_lse) {
  using Tiling = ForwardTiling<kDim>;
  const auto heads = q.shape()[1];
  const auto kv_heads = spaces.empty() ? heads : spaces[0].k.shape()[1];
  const QueryWork work = list_query_work(plan, Tiling::kRows);
  ScratchScope scratch(ctx.scratch);
  DeviceLists lists;
  const auto views = lists.add(space_views(spaces));
  const auto items = lists.add(work.items), pieces = lists.add(work.pieces);
  lists.upload(ctx, scratch);
  const ForwardArgs args{head_rows(q, "q"),
                         head_rows(out, "out"),
                         softmax_lse.data<float>(),
                         softmax_lse.strides()[0],
                         lists.at<SpaceView>(views),
                         lists.at<QueryItem>(items),
                         lists.at<KeyPiece>(pieces),
                         static_cast<int>(heads),
                         static_cast<int>(heads / kv_heads),
                         static_cast<float>(softmax_scale)};
  device::launch(ctx.stream,
                 {.grid = dim3(static_cast<unsigned>(std::ssize(work.items) * heads)),
                  .block = dim3(Tiling::kThreads),
                  .shared_bytes = kForwardSharedBytes<Tiling>},
                 prefix_attention_forward_kernel<Tiling>, args);
}

}  // namespace

void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse) {
  COPPICE_CHECK(softmax_scale > 0, "softmax_scale is {} (the largest score must stay the largest)",
                softmax_scale);
  visit_head_dim(q.shape()[2], [&](auto dim) {
    run<dim()>(ctx, plan, q, spaces, softmax_scale, out, softmax_lse);
  });
}

std::int64_t prefix_attention_forward_scratch_bytes(const AttentionPlan& plan, std::int64_t dim) {
  return visit_head_dim(dim, [&](auto head_dim) {
    const QueryWork work = list_query_work(plan, ForwardTiling<head_dim()>::kRows);
    return DeviceLists::leased_bytes(DeviceLists::padded_bytes<SpaceView>(plan.space_count()) +
                                     DeviceLists::padded_bytes<QueryItem>(std::ssize(work.items)) +
                                     DeviceLists::padded_bytes<KeyPiece>(std::ssize(work.pieces)));
  });
}

}  // namespace coppice::cuda
