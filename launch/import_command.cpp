#include "launch/import_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "checkpoint/hf_weights.hpp"
#include "checkpoint/small_file.hpp"
#include "core/error.hpp"
#include "launch/hf_directory.hpp"
#include "launch/host.hpp"
#include "launch/model_tensors.hpp"
#include "launch/output_path.hpp"
#include "launch/progress.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string hf, out;
};

// Runs `f`; an InputError becomes lines of `problems` and no value.
template <class F>
auto collect(Problems& problems, const F& f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const InputError& error) {
    problems.add_all(error.problems());
    return std::nullopt;
  }
}

void import(const Options& options) {
  const fs::path directory(options.hf);
  Problems problems;
  std::vector<fs::path> inputs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) inputs.push_back(entry.path());
  check_output_file(options.out, inputs, problems);
  if (!fs::is_directory(directory, error)) {
    problems.add("--hf {}: is no directory.", options.hf);
    problems.throw_if_any<ConfigError>();
  }
  const fs::path config_path = directory / "config.json";
  const auto json = collect(problems, [&] { return read_small_file(config_path); });
  const auto config =
      !json ? std::nullopt
            : collect(problems, [&] { return ModelConfig::parse(*json, config_path.string()); });
  const auto files = collect(problems, [&] { return SafetensorsModel(directory); });
  const auto tokenizer = collect(problems, [&] { return tokenizer_files_of(directory); });
  std::vector<HfWeight> weights;
  if (config && files) {
    weights = match_hf_weights(*files, tensors_of(*config),
                               config->tie_word_embeddings ? TiedHead::kYes : TiedHead::kNo,
                               options.hf, problems);
  }
  problems.throw_if_any<DataError>();

  CheckpointHeader header;
  header.kind = CheckpointKind::kModel;
  header.model_config_json = config->json;
  header.tokenizer = *tokenizer;
  CheckpointWriter writer(options.out, header);
  std::optional<Progress> bar;
  if (shows_progress_bar()) bar.emplace("tensor", std::ssize(weights));
  std::vector<std::byte> values;
  std::int64_t parameters = 0, done = 0;
  for (const auto& weight : weights) {
    values.resize(static_cast<std::size_t>(weight.source.entry->bytes));
    weight.source.read(0, values);
    writer.write("/parameters/" + weight.name, weight.dtype, Shard::whole(weight.shape),
                 ConstTensorView(values.data(), weight.dtype, weight.shape));
    parameters += weight.shape.numel();
    if (bar) bar->update(++done);
  }
  writer.commit();
  bar.reset();
  fmt::print(stderr, "imported {} tensors, {} parameters, {} tokenizer files to {}\n",
             weights.size(), parameters, header.tokenizer.size(), options.out);
}

}  // namespace

void add_import_command(Commands& commands) {
  auto options = std::make_shared<Options>();
  commands
      .add("import", "A Hugging Face directory becomes a model file",
           {.body = [options](Job&) { import(*options); }})
      .option("--hf", options->hf,
              "directory with config.json and model.safetensors, or shards with their index",
              Need::kRequired)
      .option("--out", options->out, "model file to write (.h5)", Need::kRequired)
      .footer(
          "Each tensor keeps its type (f32, f64, bf16, f16). Tokenizer files found beside the "
          "weights travel\nalong. A file of the name --out is replaced once the new one is "
          "whole.");
}

}  // namespace coppice
