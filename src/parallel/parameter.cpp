#include "parallel/parameter.hpp"

namespace coppice {

TensorView rows_of(const ParameterPart& part, TensorView like_parameter) {
  return like_parameter.rows(part.row_begin, part.shard.local_shape[0]);
}

}  // namespace coppice
