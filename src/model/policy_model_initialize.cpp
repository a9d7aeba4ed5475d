// The model's first weights, drawn where no file gives them.
#include "core/convert.hpp"
#include "core/copy.hpp"
#include "core/parallel_for.hpp"
#include "core/rng.hpp"
#include "model/policy_model.hpp"

namespace coppice {
namespace {

/// The first values of a part. Elements are drawn by their place in the logical tensor, so that no
/// grid changes them.
class FirstValues {
 public:
  FirstValues(const ParameterPart& part, std::uint64_t seed, double range)
      : stream_(seed, "init/" + part.name), range_(range) {
    const Shard& shard = part.shard;
    is_matrix_ = shard.local_shape.rank() == 2;
    if (!is_matrix_) constant_ = part.name.ends_with(".bias") ? 0.0 : 1.0;
    columns_ = is_matrix_ ? shard.local_shape[1] : 1;
    whole_columns_ = is_matrix_ ? shard.global_shape[1] : 1;
    first_column_ = is_matrix_ ? shard.global_offset[1] : 0;
    first_row_ = shard.global_offset[0];
  }

  double at(std::int64_t row, std::int64_t column) const {
    if (!is_matrix_) return constant_;
    const auto element = (first_row_ + row) * whole_columns_ + first_column_ + column;
    return range_ * stream_.normal(static_cast<std::uint64_t>(element));
  }
  std::int64_t columns() const { return columns_; }

 private:
  RandomStream stream_;
  double range_, constant_ = 0;
  bool is_matrix_ = false;
  std::int64_t columns_ = 1, whole_columns_ = 1, first_column_ = 0, first_row_ = 0;
};

/// Rows [begin, begin + count) of the values on the host, to `to`, which may be a device's.
void put_rows(ExecContext& ctx, const FirstValues& values, std::int64_t begin, TensorView to) {
  const auto count = to.shape()[0], columns = values.columns();
  Memory host{Device{}};
  Tensor drawn(host, accumulation_of(to.dtype()), to.shape(), "first_values");
  visit_float(drawn.dtype(), [&]<class T>(TypeTag<T>) {
    T* data = drawn.view().data<T>();
    parallel_for(ctx, count, [&](std::int64_t row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        data[row * columns + column] = static_cast<T>(values.at(begin + row, column));
      }
    });
  });
  Tensor rounded;
  if (to.dtype() != drawn.dtype()) {
    rounded = Tensor(host, to.dtype(), to.shape(), "first_values");
    convert_elements(drawn.dtype(), drawn.view().bytes(), to.dtype(), rounded.view().bytes(),
                     to.numel());
  }
  copy(ctx.stream, rounded.has_value() ? rounded : drawn, to);
}

}  // namespace

void PolicyModel::initialize(ExecContext& ctx, std::uint64_t seed) {
  constexpr std::int64_t kElementsOnHost = std::int64_t{1} << 22;
  for (Parameter* parameter : parameters()) {
    for (const ParameterPart& part : parameter->parts) {
      const TensorView weights = coppice::rows_of(part, parameter->weights());
      const FirstValues values(part, seed, config_.initializer_range);
      const auto rows = weights.shape()[0];
      const auto most = std::max<std::int64_t>(1, kElementsOnHost / values.columns());
      for (std::int64_t begin = 0; begin < rows; begin += most) {
        put_rows(ctx, values, begin, weights.rows(begin, std::min(most, rows - begin)));
      }
    }
    round_master(ctx, *parameter);
  }
}

}  // namespace coppice
