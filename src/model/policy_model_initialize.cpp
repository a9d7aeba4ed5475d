// The model's first weights, drawn where no file gives them.
#include "core/rng.hpp"
#include "model/policy_model.hpp"

namespace coppice {

void PolicyModel::initialize(std::uint64_t seed) {
  for (Parameter* parameter : parameters()) {
    for (const ParameterPart& part : parameter->parts) {
      const TensorView values = coppice::rows_of(part, parameter->value);
      const Shard& shard = part.shard;
      const RandomStream stream(seed, "init/" + part.name);
      const bool matrix = values.shape().rank() == 2, bias = part.name.ends_with(".bias");
      // Elements are drawn by their place in the logical tensor, so that no grid changes them.
      const auto columns = matrix ? shard.local_shape[1] : 1;
      const auto whole_columns = matrix ? shard.global_shape[1] : 1;
      const auto first_column = matrix ? shard.global_offset[1] : 0;
      visit_float(dtype_, [&]<class T>(TypeTag<T>) {
        T* data = values.data<T>();
        for (std::int64_t i = 0; i < values.numel(); ++i) {
          const auto element =
              (shard.global_offset[0] + i / columns) * whole_columns + first_column + i % columns;
          const double value = matrix ? config_.initializer_range *
                                            stream.normal(static_cast<std::uint64_t>(element))
                                      : (bias ? 0.0 : 1.0);
          data[i] = static_cast<T>(value);
        }
      });
    }
  }
}

}  // namespace coppice
