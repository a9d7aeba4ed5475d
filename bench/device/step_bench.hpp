#pragma once
// Training steps (forward, backward, AdamW) of one workload with random weights, grouped and
// repeated, at one or two depths; from two, a model's full depth is extrapolated along a line, and
// marked so. Log-probs of both packings are held against each other before anything is timed.
#include <string>
#include <vector>

#include "device/benches.hpp"
#include "device/trained_model.hpp"

namespace coppice::bench {

/// A step is `sequences` of a prompt and a response each; repeated, they cost the same for any
/// group size, so that packing is timed once.
struct StepWorkload {
  std::string name;  ///< what its cases begin with
  ModelShape shape;
  std::vector<std::int64_t> depths;  ///< measured, the deepest last
  std::int64_t full_depth;           ///< extrapolated to, where it is not measured
  std::int64_t prefix, response, sequences;
  std::vector<std::int64_t> group_sizes;
  /// Sequences of a micro-batch of the repeated packing; then there is one group, and one
  /// micro-batch is timed for all, which have the same shape.
  std::int64_t repeated_sequences;
};

void step_bench(const StepWorkload& workload, const BenchOptions& options, Report& report);

}  // namespace coppice::bench
