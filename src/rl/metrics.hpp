#pragma once
// The figures of one training step and the file they go to, one JSON object per line. Exact
// meanings and units: docs/metrics.md. A figure that does not apply is absent, not zero.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace coppice {

/// Seconds of wall time by phase; the largest over ranks.
struct PhaseTimes {
  double plan = 0.0;
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;  ///< gradient norm and update
  std::optional<double> reduce, checkpoint, old_logprobs;
};

/// What a step sent over one axis of the process grid.
struct AxisTraffic {
  std::string axis;        ///< "tensor", "context", "replicas", ...
  std::int64_t calls = 0;  ///< collectives of one rank, the most over ranks
  std::int64_t bytes = 0;  ///< payload, summed over ranks
  double seconds = 0.0;    ///< in collectives, waiting included; the largest over ranks
};

struct StepMetrics {
  std::int64_t step = 0;  ///< attempts, from 1
  bool skipped = false;

  std::optional<double> loss, policy_loss;
  std::optional<double> kl, entropy;  ///< nats per token
  std::optional<double> clip_fraction, ratio_mean, ratio_max;
  std::optional<double> grad_norm, learning_rate;

  std::int64_t rows = 0, logical_rows = 0, edge_rows = 0;
  std::int64_t alignment_rows = 0;  ///< beside `rows`
  std::int64_t visible_pairs = 0;   ///< of one layer and head
  std::int64_t loss_tokens = 0, groups = 0, responses = 0;
  std::optional<std::int64_t> zero_std_groups;
  std::optional<double> reward_mean, reward_std, advantage_abs_mean;
  std::optional<double> response_length_mean;  ///< ids
  std::optional<double> truncated_fraction;

  std::int64_t microbatches = 0;  ///< of each rank
  double step_seconds = 0.0;      ///< without checkpoint and old_logprobs
  PhaseTimes seconds;
  double executed_flops = 0.0;
  std::int64_t peak_memory_bytes = 0, peak_resident_bytes = 0;  ///< of the fullest rank
  std::optional<std::int64_t> communication_bytes;  ///< payload, summed over ranks and axes
  std::vector<AxisTraffic> communication;           ///< of axes with several ranks
  std::int64_t bad_steps = 0, fallbacks = 0;        ///< so far in the run
  std::string sharing;  ///< "GROUPED", "REPEATED", "MIXED"; empty: no rows
};

/// One line of metrics.jsonl, without its end. Numbers that are not finite are absent.
std::string to_json(const StepMetrics& metrics);

/// Appends lines, each flushed as it is written. Nothing is touched before the first line or
/// settle().
///
/// Effects   then lines of steps beyond `last_step` (a run that died after its last
///           checkpoint left them) and a torn last line are removed; `last_line`, the line of
///           `last_step`, is put back where it is missing
/// Errors    IoError
class MetricsFile {
 public:
  MetricsFile(std::filesystem::path path, std::int64_t last_step, std::string last_line);
  void write(const std::string& line);
  /// Brings the file to `last_step` now; one that is there already is not touched.
  void settle();

 private:
  std::filesystem::path path_;
  std::int64_t last_step_;
  std::string last_line_;
  std::ofstream file_;
};

/// The most memory this process ever had resident, in bytes.
std::int64_t peak_resident_bytes();

}  // namespace coppice
