#pragma once
// What it costs to run packed rows, so that planners can compare: FLOPs, and for a prefix packed
// once what sharing costs beside them. The figures are constants of this file and not measured as a
// run starts, because the choice they make must be the same in every run, in `plan` and on every
// rank (docs/decisions/0007-auto-sharing-by-fixed-costs.md).
#include <concepts>
#include <cstdint>
#include <functional>

#include "model/flops.hpp"
#include "model/model_config.hpp"

namespace coppice {

/// What the seams between a prefix and the responses that share it cost beside the work: attention
/// goes over more, smaller ranges. In the unit of the cost that they are added to.
struct SharingCost {
  double per_range = 0;  ///< of a query range and a key range that it sees
  double per_row = 0;    ///< of a response's row, which sees its prefix apart
};

/// In any unit; made from a function of the work where seams cost nothing.
class PackingCost {
 public:
  template <std::invocable<const PackedWork&> OfWork>
  PackingCost(OfWork of_work, SharingCost sharing = {})
      : of_work_(std::move(of_work)), sharing_(sharing) {}

  double operator()(const PackedWork& work) const { return of_work_(work); }
  /// Of `ranges` more (query range, key range) pairs and `rows` rows behind a shared prefix.
  double of_seams(std::int64_t ranges, std::int64_t rows) const {
    return sharing_.per_range * static_cast<double>(ranges) +
           sharing_.per_row * static_cast<double>(rows);
  }

 private:
  std::function<double(const PackedWork&)> of_work_;
  SharingCost sharing_;
};

/// Of a forward and a backward, in FLOPs; refers to the config.
PackingCost packing_cost(const ModelConfig& config);

}  // namespace coppice
