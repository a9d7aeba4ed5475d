#pragma once
// Which token ids a tensor-parallel rank holds, in the embedding and in the head alike.
#include <algorithm>
#include <cstdint>
#include <string>

#include "parallel/parallel_context.hpp"
#include "parallel/parameter.hpp"

namespace coppice {

/// Runs of equal length but for the last ones: what a rank lacks is padding in memory, never on
/// disk.
struct VocabShard {
  std::int64_t vocab_size;
  std::int64_t padded_rows;  // rows of the weight on every rank
  std::int64_t begin;        // first token id of this rank
  std::int64_t size;         // its token ids; may be 0

  bool holds(std::int64_t token) const { return token >= begin && token < begin + size; }
};

inline VocabShard vocab_shard(const ParallelContext& parallel, std::int64_t vocab_size) {
  const std::int64_t ranks = parallel.tensor.size(), rank = parallel.tensor.rank();
  const auto padded = (vocab_size + ranks - 1) / ranks;
  const auto begin = std::min(vocab_size, rank * padded);
  return {vocab_size, padded, begin, std::min(padded, vocab_size - begin)};
}

/// The weight of an embedding or a head: this rank's tokens, then padding.
inline Parameter make_vocab_weight(const ParameterStorage& storage, const std::string& name,
                                   const VocabShard& shard, std::int64_t hidden_size) {
  const Shape whole{shard.vocab_size, hidden_size};
  return make_parameter(storage, name, {{name, Shard::along(whole, 0, shard.begin, shard.size)}},
                        WeightDecay::kYes, shard.padded_rows - shard.size);
}

}  // namespace coppice
