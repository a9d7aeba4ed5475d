// The trainer's saving and restoring: what a checkpoint holds beside the tensors, which rectangles
// this rank writes and reads, and how a batch in flight comes back.
#include "checkpoint/checkpoint_directory.hpp"
#include "core/build_config.hpp"
#include "parallel/exchange.hpp"
#include "rl/phase.hpp"
#include "rl/trainer.hpp"

namespace coppice {
namespace {

constexpr const char* kOldLogprobs = "old_logprobs";

std::vector<StateTensor> joined(std::vector<StateTensor> tensors,
                                const std::vector<StateTensor>& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

}  // namespace

// What one rank does for all; where it fails, all do.
void Trainer::on_first_rank(const std::function<void()>& body) {
  succeed_together(grid_.world(), [&] {
    if (is_first_rank()) body();
  });
}

void Trainer::save() {
  COPPICE_CHECK(has_weights_, "a save after a restore that failed");
  const Phase phase(ctx_, grid_.activity(), "checkpoint");
  CheckpointHeader header{.kind = CheckpointKind::kCheckpoint,
                          .step = state_.step,
                          .optimizer_step = optimizer_.applied_steps(),
                          .program_version = std::string(build::kVersion),
                          .model_config_json = model_.config().json,
                          .run_config_textproto = config_.run_config_textproto,
                          .trainer_json = to_json(state_),
                          .trainer_arrays = {},
                          .tokenizer = config_.tokenizer};
  // What was computed for the batch in flight cannot be computed again: the weights have moved on.
  if (state_.update > 0 && batch_->has_old_logprobs())
    header.trainer_arrays.push_back({kOldLogprobs, batch_->old_logprobs()});
  const auto directory = config_.run_dir / "checkpoints";
  on_first_rank([&] { std::filesystem::create_directories(directory); });
  save_checkpoint(
      directory / checkpoint_file_name(state_.step), header,
      on_stream(ctx_.stream, joined(parameter_tensors(parameters_, reducer_.spoken_for()),
                                    moment_tensors(optimizer_, reducer_.spoken_for()))),
      config_.checkpoint.keep_precision, grid_.world());
  on_first_rank(
      [&] { remove_old_checkpoints(directory, config_.checkpoint.keep_last, state_.step); });
  saved_step_ = state_.step;
  if (events_.checkpoint_saved) events_.checkpoint_saved(state_.step);
}

void Trainer::restore(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.header();
  TrainerState state;
  has_weights_ = false;
  try {
    state = trainer_state_from_json(header.trainer_json, checkpoint.path().string());
    checkpoint.read(
        on_stream(ctx_.stream, joined(parameter_tensors(parameters_), moment_tensors(optimizer_))));
  } catch (const DataError& error) {  // names and shapes too: the model is the file's own
    throw DamagedCheckpoint(error.problems());
  }
  for (Parameter* parameter : parameters_) round_master(ctx_, *parameter);
  optimizer_.set_applied_steps(header.optimizer_step);

  state_ = state;
  source_.set_position(state.position);
  batch_.reset();
  if (state.update > 0) {
    take_batch();
    for (const TrainerArray& array : header.trainer_arrays)
      if (array.name == kOldLogprobs) batch_->set_old_logprobs(array.values);
    if (batch_->needs_old_logprobs())
      throw DamagedCheckpoint(
          {fmt::format("{}: the old log-probs of the batch in flight are missing (the "
                       "weights have moved on). Resume from another checkpoint.",
                       checkpoint.path().string())});
  }
  has_weights_ = true;
  saved_step_ = state.step;
  if (is_first_rank())
    metrics_file_.emplace(config_.run_dir / "metrics.jsonl", state.step, state.metrics_line);
}

}  // namespace coppice
