#include "launch/export_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "checkpoint/pending_file.hpp"
#include "checkpoint/safetensors.hpp"
#include "core/convert.hpp"
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
  std::string checkpoint, out;
  std::optional<std::string> dtype;
};

std::optional<DType> dtype_from(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  return *name == "bf16" ? DType::kBF16 : *name == "f16" ? DType::kF16 : DType::kF32;
}

// The type that most elements have: what config.json then says of the model.
DType prevailing_dtype(const std::vector<SafetensorsSpec>& tensors) {
  std::map<DType, std::int64_t> elements;
  for (const auto& tensor : tensors) elements[tensor.dtype] += tensor.shape.numel();
  return std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; })
      ->first;
}

// Elements that are finite in `from` and no longer in `to`: rounding says so, but does it, as
// PyTorch.
std::int64_t count_overflows(DType from, const std::byte* source, DType to,
                             const std::byte* converted, std::int64_t count) {
  constexpr std::int64_t kBlock = 1 << 14;
  std::vector<double> before(kBlock), after(kBlock);
  std::int64_t overflows = 0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    convert_elements(from, source + begin * size_of(from), DType::kF64,
                     std::as_writable_bytes(std::span(before)).data(), size);
    convert_elements(to, converted + begin * size_of(to), DType::kF64,
                     std::as_writable_bytes(std::span(after)).data(), size);
    for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i)
      overflows += std::isfinite(before[i]) && !std::isfinite(after[i]);
  }
  return overflows;
}

// One tensor, whole: from the file, converted, into the safetensors file.
void copy_tensor(const CheckpointReader& reader, const StoredTensor& stored,
                 const SafetensorsSpec& spec, SafetensorsWriter& writer) {
  const std::int64_t count = stored.shape.numel();
  std::vector<std::byte> values(static_cast<std::size_t>(count * size_of(stored.dtype)));
  reader.read_stored(stored, 0, stored.shape.rank() == 0 ? 1 : stored.shape[0], values.data());
  if (stored.dtype != spec.dtype) {
    std::vector<std::byte> converted(static_cast<std::size_t>(count * size_of(spec.dtype)));
    convert_elements(stored.dtype, values.data(), spec.dtype, converted.data(), count);
    const std::int64_t overflows =
        count_overflows(stored.dtype, values.data(), spec.dtype, converted.data(), count);
    if (overflows > 0)
      fmt::print(stderr, "{}: {} elements are beyond {} and become infinite.\n", spec.name,
                 overflows, name_of(spec.dtype));
    values = std::move(converted);
  }
  writer.write(spec.name, 0, values);
}

void export_model(const Options& options) {
  Problems problems;
  check_output_directory(options.out, problems);
  problems.throw_if_any<ConfigError>();
  CheckpointReader reader(options.checkpoint);
  for (const auto& notice : reader.notices()) fmt::print(stderr, "{}\n", notice);
  const auto config = ModelConfig::parse(reader.header().model_config_json,
                                         options.checkpoint + " (/config/model)");
  const auto expected = tensors_of(config);
  reader.check_parameters(expected);
  reader.verify();

  const auto dtype = dtype_from(options.dtype);
  std::map<std::string, const StoredTensor*> stored;
  for (const auto& tensor : reader.tensors()) stored[tensor.dataset] = &tensor;
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, shape] : expected) {
    specs.push_back({name, dtype.value_or(stored.at("/parameters/" + name)->dtype), shape});
  }
  PendingDirectory directory(options.out);
  for (const auto& file : reader.header().tokenizer) {
    write_file_atomically(directory.temporary() / file.name, file.bytes);
  }
  write_file_atomically(
      directory.temporary() / "config.json",
      config_with_dtype(reader.header().model_config_json, prevailing_dtype(specs)));
  SafetensorsWriter writer(directory.temporary() / "model.safetensors", specs);
  std::optional<Progress> bar;
  if (shows_progress_bar()) bar.emplace("tensor", std::ssize(specs));
  std::int64_t done = 0;
  for (const auto& spec : specs) {
    copy_tensor(reader, *stored.at("/parameters/" + spec.name), spec, writer);
    if (bar) bar->update(++done);
  }
  writer.commit();
  directory.commit();
  bar.reset();
  fmt::print(stderr, "exported {} tensors, mostly {}, to {}\n", specs.size(),
             name_of(prevailing_dtype(specs)), options.out);
}

}  // namespace

void add_export_command(Commands& commands) {
  auto options = std::make_shared<Options>();
  commands
      .add("export", "A model file or checkpoint becomes a Hugging Face directory",
           {.body = [options](Job&) { export_model(*options); }})
      .option("--checkpoint", options->checkpoint, "model or checkpoint (.h5)", Need::kRequired)
      .option("--out", options->out, "directory to make; an empty one may be there",
              Need::kRequired)
      .choice("--dtype", options->dtype, {"f32", "bf16", "f16"},
              "type of all weights, rounded to nearest even [each tensor's stored type]")
      .footer(
          "Writes config.json (its dtype follows the weights), model.safetensors and the "
          "tokenizer files that\ncame with the model.");
}

}  // namespace coppice
