#include "launch/open_model.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "launch/model_tensors.hpp"
#include "parallel/exchange.hpp"
#include "rl/training_state.hpp"

namespace coppice {

const std::filesystem::path& ModelFile::path() const {
  return hf() != nullptr ? hf()->directory : checkpoint()->path();
}

const std::vector<AttachedFile>& ModelFile::tokenizer() const {
  return hf() != nullptr ? hf()->tokenizer : checkpoint()->header().tokenizer;
}

ModelFile open_model(HfModel hf) {
  ModelConfig config = hf.config;
  return {std::move(hf), std::move(config)};
}

ModelFile open_model(CheckpointReader reader, const Job& job) {
  if (job.is_first())
    for (const auto& notice : reader.notices()) fmt::print(stderr, "{}\n", notice);
  auto config = ModelConfig::parse(reader.header().model_config_json,
                                   reader.path().string() + " (/config/model)");
  // Before anything is made in the sizes that the config tells.
  reader.check_parameters(tensors_of(config));
  return {std::move(reader), std::move(config)};
}

std::unique_ptr<PolicyModel> allocate_model(const ModelFile& file, Session& session, DType compute,
                                            WithGradients gradients) {
  return std::make_unique<PolicyModel>(file.config, session.parallel(), compute, session.memory(),
                                       gradients);
}

std::unique_ptr<PolicyModel> load_model(const ModelFile& file, Session& session, DType compute,
                                        WithGradients gradients) {
  auto model = allocate_model(file, session, compute, gradients);
  const auto parameters = model->parameters();
  const auto tensors = on_stream(session.ctx().stream, parameter_tensors(parameters));
  Communicator& world = session.grid().world();
  if (const HfModel* hf = file.hf())
    succeed_together(world, [&] { read_hf_weights(hf->weights, tensors); });
  else if (world.size() == 1)
    file.checkpoint()->read(tensors);
  else  // `file` is each rank's own; together they compare checksums once, not each all of them.
    CheckpointReader(file.path(), world).read(tensors);
  for (Parameter* parameter : parameters) round_master(session.ctx(), *parameter);
  return model;
}

}  // namespace coppice
