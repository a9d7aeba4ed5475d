#include "launch/open_model.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "rl/training_state.hpp"

namespace coppice {

ModelFile open_model(CheckpointReader reader, const Job& job) {
  if (job.is_first())
    for (const auto& notice : reader.notices()) fmt::print(stderr, "{}\n", notice);
  auto config = ModelConfig::parse(reader.header().model_config_json,
                                   reader.path().string() + " (/config/model)");
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
  // `file` is each rank's own; together they compare checksums once, not each all of them.
  Communicator& world = session.grid().world();
  if (world.size() == 1)
    file.reader.read(parameter_tensors(parameters));
  else
    CheckpointReader(file.reader.path(), world).read(parameter_tensors(parameters));
  return model;
}

}  // namespace coppice
