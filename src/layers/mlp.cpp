// The feed-forward network, composed of its ops.
#include "layers/mlp.hpp"

#include <algorithm>

#include "layers/swiglu.hpp"

namespace coppice {

Mlp::Mlp(const ParallelContext& parallel, const ParameterStorage& storage, const std::string& name,
         std::int64_t hidden_size, std::int64_t intermediate_size)
    : dtype_(storage.dtype),
      intermediate_size_(intermediate_size / parallel.tensor.size()),
      gate_up_(parallel, storage,
               {.name = name + ".gate_up_proj",
                .in_features = hidden_size,
                .parts = {{name + ".gate_proj", intermediate_size},
                          {name + ".up_proj", intermediate_size}}}),
      down_(parallel, storage,
            {.name = name + ".down_proj",
             .in_features = intermediate_size,
             .parts = {{name + ".down_proj", hidden_size}}}) {}

Mlp::Activations Mlp::lease_activations(Arena& arena, std::int64_t tokens) const {
  return {.gate_up = Tensor(arena.matrix(dtype_, tokens, 2 * intermediate_size_)),
          .hidden = arena.tensor(dtype_, {tokens, intermediate_size_})};
}

std::int64_t Mlp::activation_bytes(std::int64_t tokens) const {
  return Arena::matrix_bytes(dtype_, tokens, 2 * intermediate_size_) +
         Arena::leased_bytes(dtype_, {tokens, intermediate_size_});
}

std::int64_t Mlp::scratch_bytes(std::int64_t tokens) const {
  return std::max(gate_up_.scratch_bytes(tokens), down_.scratch_bytes(tokens));
}

void Mlp::recompute(ExecContext& ctx, ConstTensorView x, Activations& acts) const {
  {
    const TraceScope scope(ctx.trace, TraceKind::kModule, "gate_up_proj_forward");
    gate_up_.forward(ctx, x, acts.gate_up);
  }
  swiglu_forward(ctx, acts.gate_up, acts.hidden);
}

void Mlp::forward(ExecContext& ctx, ConstTensorView x, Activations& acts, TensorView y) const {
  recompute(ctx, x, acts);
  const TraceScope scope(ctx.trace, TraceKind::kModule, "down_proj_forward");
  down_.forward(ctx, acts.hidden, y);
}

void Mlp::backward(ExecContext& ctx, ConstTensorView x, Activations&& acts, ConstTensorView dy,
                   TensorView dx) {
  // Each gradient takes the place of its activation, which nobody reads after this.
  const TensorView d_hidden = acts.hidden, d_gate_up = acts.gate_up;
  {
    const TraceScope scope(ctx.trace, TraceKind::kModule, "down_proj_backward");
    down_.backward(ctx, acts.hidden, dy, d_hidden);
  }
  swiglu_backward(ctx, acts.gate_up, d_hidden, d_gate_up);
  const TraceScope scope(ctx.trace, TraceKind::kModule, "gate_up_proj_backward");
  gate_up_.backward(ctx, x, d_gate_up, dx);
}

void Mlp::collect(std::vector<Parameter*>& parameters) {
  gate_up_.collect(parameters);
  down_.collect(parameters);
}

}  // namespace coppice
