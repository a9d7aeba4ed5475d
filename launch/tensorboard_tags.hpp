#pragma once
// Under which names TensorBoard shows the metrics. A tag is a panel's name, a slash and the
// metric's own name, so that what is seen there can be looked up in docs/metrics.md.
#include <string>
#include <vector>

namespace coppice {

struct TaggedValue {
  std::string tag;
  std::string unit;  ///< for the description; empty where the metric is not known here
  double value = 0;
};

/// The numbers of a metrics line, in its order; true and false as 1 and 0, words left out. The
/// ratio of `logical_rows` to `rows`, what sharing saves, is added as batch/sharing_ratio.
///
/// Errors    ContractError where the line is no JSON object
std::vector<TaggedValue> tagged_values(const std::string& metrics_line);

}  // namespace coppice
