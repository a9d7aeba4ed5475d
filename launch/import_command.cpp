#include "launch/import_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint.hpp"
#include "core/error.hpp"
#include "launch/hf_directory.hpp"
#include "launch/hf_model.hpp"
#include "launch/host.hpp"
#include "launch/output_path.hpp"
#include "launch/progress.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct ImportOptions {
  std::string hf, out;
};

// A block of a tensor passes through at a time, whatever the tensor's size.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

// One tensor, in blocks of rows.
void copy_tensor(const HfWeight& weight, CheckpointWriter& writer) {
  const Shape& shape = weight.shape;
  const std::int64_t rows = shape.rank() == 0 ? 1 : shape[0];
  const std::int64_t row_bytes = rows == 0 ? 0 : weight.source.entry->bytes / rows;
  const std::int64_t block =
      std::max<std::int64_t>(1, kBlockBytes / std::max(row_bytes, std::int64_t{1}));
  const std::string dataset = "/parameters/" + weight.name;
  std::vector<std::byte> values;
  for (std::int64_t begin = 0; begin == 0 || begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    values.resize(static_cast<std::size_t>(count * row_bytes));
    weight.source.read(begin * row_bytes, values);
    const Shard shard =
        shape.rank() == 0 ? Shard::whole(shape) : Shard::along(shape, 0, begin, count);
    writer.write(dataset, weight.dtype, shard,
                 ConstTensorView(values.data(), weight.dtype, shard.local_shape));
  }
}

void import(const ImportOptions& options) {
  const fs::path directory(options.hf);
  Problems problems;
  std::error_code error;
  check_output_file(options.out, inputs_in(directory), problems);
  if (!fs::is_directory(directory, error)) {
    problems.add("--hf {}: is no directory.", options.hf);
    problems.throw_if_any<ConfigError>();
  }
  std::optional<HfModel> model;
  try {
    model.emplace(open_hf_model(directory));
  } catch (const InputError& refused) {
    problems.add_all(refused.problems());
  }
  problems.throw_if_any<DataError>();

  CheckpointHeader header;
  header.kind = CheckpointKind::kModel;
  header.model_config_json = model->config.json;
  header.tokenizer = model->tokenizer;
  CheckpointWriter writer(options.out, header);
  std::optional<Progress> bar;
  if (shows_progress_bar()) bar.emplace("tensor", std::ssize(model->weights));
  std::int64_t parameters = 0, done = 0;
  for (const auto& weight : model->weights) {
    copy_tensor(weight, writer);
    parameters += weight.shape.numel();
    if (bar) bar->update(++done);
  }
  writer.commit();
  bar.reset();
  fmt::print(stderr, "imported {} tensors, {} parameters, {} tokenizer files to {}\n",
             model->weights.size(), parameters, header.tokenizer.size(), options.out);
}

}  // namespace

void add_import_command(Commands& commands) {
  auto options = std::make_shared<ImportOptions>();
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
          "whole. Tensors pass through\nin blocks, so a model of any size needs a few MiB of "
          "memory. A training run can also read the\ndirectory itself: model { hf: \"DIR\" }.");
}

}  // namespace coppice
