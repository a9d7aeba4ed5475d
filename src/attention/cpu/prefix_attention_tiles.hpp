#pragma once
// How ranges of a plan are cut into tiles on the CPU, and what a tile costs. Cuts count from the
// beginning of a range, never from a packed row, so that neither siblings nor other groups can
// change how a row's sums are made; nor may the number of threads.
#include <algorithm>
#include <cstdint>

#include "attention/attention_plan.hpp"
#include "attention/cpu/prefix_attention_kernels.hpp"

namespace coppice::cpu {

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

/// Sizes for one call.
struct TileSizes {
  /// Columns of a score tile at most, in forward and backward. Measured on 2 AVX-512 cores with
  /// 2 MiB of second cache each; see bench/prefix_attention_bench.cpp.
  static constexpr std::int64_t kForwardKeys = 256;
  static constexpr std::int64_t kBackwardKeys = 256;

  static constexpr std::int64_t kMaxParts = 4;

  TileSizes(std::int64_t num_attention_heads, std::int64_t num_key_value_heads)
      : heads(num_attention_heads / num_key_value_heads),
        query_rows(query_rows_for(heads)),
        dq_parts(dq_parts_for(num_key_value_heads)) {}

  /// So that stacked rows are some 200 where heads allow it; key tiles hold whole query tiles.
  static std::int64_t query_rows_for(std::int64_t heads) {
    if (heads <= 4) return 64;
    return heads <= 8 ? 32 : 16;
  }
  /// So that a few threads find work; parts cost memory (each is as large as dq), hardly time.
  static std::int64_t dq_parts_for(std::int64_t num_key_value_heads) {
    if (num_key_value_heads < 4) return kMaxParts;
    return num_key_value_heads < 16 ? 2 : 1;
  }

  std::int64_t heads;       // query heads of one key-value head
  std::int64_t query_rows;  // of a tile; its stacked rows are heads times as many
  std::int64_t dq_parts;    // backward: sets of key tiles with a dq of their own, summed at the end

  std::int64_t stacked_rows() const { return query_rows * heads; }
};

/// `rows` cut into equal tiles of at most `most` rows, in multiples of `unit`.
struct EvenTiles {
  EvenTiles(std::int64_t rows, std::int64_t most, std::int64_t unit)
      : total(rows), size(std::max(unit, round_up(divide_up(rows, divide_up(rows, most)), unit))) {}
  std::int64_t count() const { return divide_up(total, size); }
  std::int64_t length(std::int64_t begin) const { return std::min(size, total - begin); }

  std::int64_t total, size;
};

}  // namespace coppice::cpu
