#pragma once
// Names of the parts of a checkpoint file, for its writer and its reader. docs/checkpoint_format.md
// says what they mean.
#include <algorithm>
#include <cstdint>
#include <string>

#include "core/dtype.hpp"
#include "core/shape.hpp"

namespace coppice::layout {

inline constexpr std::int64_t kFormatVersion = 1;
inline constexpr const char* kModelConfig = "/config/model";
inline constexpr const char* kRunConfig = "/config/run";
inline constexpr const char* kTrainerState = "/trainer/state";
inline constexpr const char* kChecksums = "/checksums";

/// Tensors pass through blocks of about this many bytes.
inline constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;

/// Entries of axis 0; 1 for a scalar.
inline std::int64_t rows_of(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

/// Elements of one row; 1 where there are no rows.
inline std::int64_t row_elements(const Shape& shape) {
  return std::max<std::int64_t>(1, shape.numel() / std::max<std::int64_t>(1, rows_of(shape)));
}

/// Rows of one block, at least 1.
inline std::int64_t block_rows(const Shape& shape, DType dtype) {
  return std::max<std::int64_t>(1, kBlockBytes / (row_elements(shape) * size_of(dtype)));
}

}  // namespace coppice::layout
