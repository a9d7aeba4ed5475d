#include "launch/init_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "checkpoint/small_file.hpp"
#include "launch/hf_directory.hpp"
#include "launch/host.hpp"
#include "launch/output_path.hpp"
#include "model/policy_model.hpp"
#include "rl/training_state.hpp"

namespace coppice {
namespace {

struct InitOptions {
  std::string hf_config, out;
  std::uint64_t seed = 0;
};

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

void init(const InitOptions& options) {
  const std::filesystem::path config_path(options.hf_config);
  Problems problems;
  auto inputs = inputs_in(directory_of(config_path));  // the tokenizer's files are read too
  inputs.push_back(config_path);
  check_output_file(options.out, inputs, problems);
  ModelConfig config;
  std::vector<AttachedFile> tokenizer;
  try {
    config = ModelConfig::parse(read_small_file(config_path), options.hf_config);
    tokenizer = tokenizer_files_of(directory_of(config_path));
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<ConfigError>();
  Stream stream{Device{}};
  Memory memory{Device{}};
  Arena scratch(memory, "scratch");
  ExecContext ctx{stream, memory, scratch, available_cores()};
  const auto self = make_self_communicator();
  PolicyModel model(config, {*self, *self, *self}, DType::kF32, memory, WithGradients::kNo);
  model.initialize(ctx, options.seed);

  CheckpointHeader header;
  header.kind = CheckpointKind::kModel;
  header.model_config_json = config.json;
  header.tokenizer = std::move(tokenizer);
  const auto weights = parameter_tensors(model.parameters());
  save_checkpoint(options.out, header, weights);
  std::int64_t parameters = 0;
  for (const auto& weight : weights) parameters += weight.local.numel();
  fmt::print(stderr, "wrote {} tensors, {} parameters, with fresh weights to {}\n", weights.size(),
             parameters, options.out);
}

}  // namespace

void add_init_command(Commands& commands) {
  auto options = std::make_shared<InitOptions>();
  commands
      .add("init", "A model file with fresh weights", {.body = [options](Job&) { init(*options); }})
      .option("--hf-config", options->hf_config, "a Hugging Face config.json", Need::kRequired)
      .option("--seed", options->seed, "the same seed gives the same weights on any grid",
              Need::kRequired)
      .option("--out", options->out, "model file to write (.h5)", Need::kRequired)
      .footer(
          "Matrices are normal(0, initializer_range), norms 1, biases 0, all f32. Tokenizer "
          "files found beside\nthe config.json travel along.");
}

}  // namespace coppice
