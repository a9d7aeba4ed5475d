#pragma once
// What a checkpoint holds of a training run besides its weights: the list of tensors with their
// names in the file, and the trainer's own state as JSON. Together they bring a resumed run to the
// very numbers the run would have had.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "optim/adamw.hpp"
#include "parallel/row_share.hpp"
#include "rl/group_source.hpp"

namespace coppice {

// The rectangles of a rank. Every list names every logical tensor in the same order on all ranks,
// rectangles without rows included: a file's names can then be checked on each rank alone, and
// written by all of them together.

/// "/parameters/<name>": all that this rank holds, to be read.
std::vector<StateTensor> parameter_tensors(std::span<Parameter* const> parameters);
/// The same, to be written: of the parts this rank speaks for, the rows in its share. Over all
/// ranks, every element is in exactly one rectangle.
std::vector<StateTensor> parameter_tensors(std::span<Parameter* const> parameters,
                                           RowShare spoken_for);
/// "/optimizer/exp_avg/<name>" and "/optimizer/exp_avg_sq/<name>" of every trainable one: all that
/// the optimizer holds, to be read.
std::vector<StateTensor> moment_tensors(AdamW& optimizer);
/// The same, to be written.
///
/// Errors    ContractError if the optimizer does not hold the rows that are spoken for
std::vector<StateTensor> moment_tensors(AdamW& optimizer, RowShare spoken_for);

/// The same tensors, ordered with the work of `stream`: what those of a device need.
std::vector<StateTensor> on_stream(Stream& stream, std::vector<StateTensor> tensors);

struct TrainerState {
  std::int64_t step = 0;          ///< attempts so far
  std::int64_t bad_steps = 0;     ///< of them, skipped
  std::int64_t bad_in_a_row = 0;  ///< up to now
  std::int64_t fallbacks = 0;     ///< groups that had to be cut, so far
  std::int64_t update = 0;        ///< updates already taken with the batch in flight; 0: none is
  SourcePosition position;        ///< of the source before the batch in flight, or now
  std::uint64_t seed = 1;
  std::string metrics_line;  ///< of the last step

  friend bool operator==(const TrainerState&, const TrainerState&) = default;
};

/// The pair: what one writes the other reads.
std::string to_json(const TrainerState& state);
/// `place` names the file in messages.
///
/// Errors    DataError listing every field that is missing or has another type
TrainerState trainer_state_from_json(const std::string& json, const std::string& place);

}  // namespace coppice
