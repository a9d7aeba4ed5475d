#include "launch/run_data.hpp"

#include "launch/device_choice.hpp"
#include "launch/grid_check.hpp"

namespace coppice {

RunData open_run_data(const RunConfig& config, const Job& job,
                      std::optional<CheckpointReader> resumed, std::optional<ModelConfig> shape) {
  Problems problems;
  std::optional<ModelFile> file;
  try {
    if (shape)
      file.emplace(ModelFile{std::monostate{}, *std::move(shape)});
    else if (resumed)
      file.emplace(open_model(std::move(*resumed), job));
    else if (!config.model_hf.empty())
      file.emplace(open_model(open_hf_model(config.model_hf)));
    else
      file.emplace(open_model(CheckpointReader(config.model_checkpoint), job));
    problems.add_all(tensor_problems(file->config, config.grid.tensor, config.tensor_place));
    problems.add_all(device_problems(file->config, config.device));
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  std::vector<Group> groups;
  try {
    // Without a model its vocabulary is unknown; everything else can still be checked.
    groups = read_rollouts(
        config.rollouts, training_needs(config.trainer.loss, file ? file->config : ModelConfig{}));
    check_row_budget(groups, config.trainer.batching);
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<DataError>();
  return {std::move(*file),
          RolloutsSource(std::move(groups), config.epochs, config.shuffle, config.trainer.seed)};
}

}  // namespace coppice
