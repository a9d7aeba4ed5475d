// The table of angles, checks and dispatch of the rotary embedding.
#include "layers/rope.hpp"

#include <cmath>

#include "core/build_config.hpp"
#include "core/copy.hpp"

namespace coppice {
namespace {

void rope(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
          TensorView x, RopeDirection direction) {
  COPPICE_CHECK(x.shape().rank() == 3 && x.shape()[2] == 2 * table.cos().shape()[1],
                "rope: x {} with a table {}", x.shape(), table.cos().shape());
  COPPICE_CHECK(x.shape()[0] == std::ssize(positions), "rope: {} positions for x {}",
                positions.size(), x.shape());
  COPPICE_CHECK(accumulation_of(x.dtype()) == table.cos().dtype(), "rope: x is {}, the table {}",
                name_of(x.dtype()), name_of(table.cos().dtype()));
  for (const auto position : positions) {
    COPPICE_CHECK(position >= 0 && position < table.positions(), "rope: position {} of {}",
                  position, table.positions());
  }
  const char* name = direction == RopeDirection::kForward ? "rope_forward" : "rope_backward";
  const TraceScope scope(ctx.trace, name, {.rows = x.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::rope(ctx, table, positions, x, direction);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::rope(ctx, table, positions, x, direction);
      break;
  }
  throw_no_backend("rope", ctx.device());
}

}  // namespace

RopeTable::RopeTable(Memory& memory, DType dtype, const RopeConfig& config, std::int64_t head_dim,
                     std::int64_t positions)
    : cos_(memory, accumulation_of(dtype), Shape({positions, head_dim / 2}), "rope_table"),
      sin_(memory, accumulation_of(dtype), Shape({positions, head_dim / 2}), "rope_table") {
  const auto frequencies = rope_frequencies(config, head_dim);
  const double factor = rope_attention_factor(config);
  const auto pairs = std::ssize(frequencies);
  Memory host{Device{}};
  const bool on_host = memory.device() == host.device();
  Tensor cos_on_host, sin_on_host;
  if (!on_host) {
    cos_on_host = Tensor(host, cos_.dtype(), cos_.shape(), "rope_table");
    sin_on_host = Tensor(host, sin_.dtype(), sin_.shape(), "rope_table");
  }
  visit_float(cos_.dtype(), [&]<class T>(TypeTag<T>) {
    T* cosines = (on_host ? cos_ : cos_on_host).view().template data<T>();
    T* sines = (on_host ? sin_ : sin_on_host).view().template data<T>();
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
        cosines[p * pairs + i] = static_cast<T>(factor * std::cos(angle));
        sines[p * pairs + i] = static_cast<T>(factor * std::sin(angle));
      }
    }
  });
  if (on_host) return;
  copy(memory, cos_on_host, cos_);
  copy(memory, sin_on_host, sin_);
}

void rope_forward(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
                  TensorView x) {
  rope(ctx, table, positions, x, RopeDirection::kForward);
}

void rope_backward(ExecContext& ctx, const RopeTable& table,
                   std::span<const std::int32_t> positions, TensorView dx) {
  rope(ctx, table, positions, dx, RopeDirection::kBackward);
}

}  // namespace coppice
