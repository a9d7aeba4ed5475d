#pragma once
// Which rows of a parameter belong to one of the ranks that all hold it. Optimizer state is sharded
// by whole rows, so that what a rank writes of a tensor is always one rectangle. Who sums the
// gradients of these rows is gradient_reducer.hpp's business.
#include "parallel/parameter.hpp"

namespace coppice {

/// Rows [begin, end) of a parameter or of a tensor shaped like it.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// What both hold; empty where nothing is.
RowRange intersection(const RowRange& a, const RowRange& b);

/// The share of place `rank` among `size`: every row is somebody's, and one's only. As it is made,
/// the share is everything.
struct RowShare {
  int rank = 0;
  int size = 1;

  /// Of R rows: [R rank / size, R (rank + 1) / size).
  RowRange of(std::int64_t rows) const;
  RowRange of(const Parameter& parameter) const { return of(parameter.rows()); }
  /// How many rows of R each place has, in order.
  std::vector<std::int64_t> counts(std::int64_t rows) const;
};

/// The rows of `parameter` that are the rectangle `part`.
RowRange row_range_of(const ParameterPart& part);

/// The rows in `rows` of those parts that this rank speaks for (ParameterPart::is_primary), in
/// order; neighbours are one range. Padding rows are in none.
std::vector<RowRange> primary_rows(const Parameter& parameter, const RowRange& rows);

}  // namespace coppice
