#include "launch/export_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "checkpoint/pending_file.hpp"
#include "checkpoint/safetensors_writer.hpp"
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

struct ExportOptions {
  std::string checkpoint, out;
  std::optional<std::string> dtype;
  std::string max_shard_size = "50GB";
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

// A block of a tensor passes through at a time, whatever the tensor's size.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

// One tensor, in blocks of rows: from the file, converted, into the safetensors file.
void copy_tensor(const CheckpointReader& reader, const StoredTensor& stored,
                 const SafetensorsSpec& spec, SafetensorsModelWriter& writer) {
  const std::int64_t rows = stored.shape.rank() == 0 ? 1 : stored.shape[0];
  const std::int64_t row = stored.shape.numel() / std::max<std::int64_t>(1, rows);
  const std::int64_t from = size_of(stored.dtype), to = size_of(spec.dtype);
  const std::int64_t block =
      std::max<std::int64_t>(1, kBlockBytes / std::max<std::int64_t>(1, row * std::max(from, to)));
  std::vector<std::byte> values, converted;
  std::int64_t overflows = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    values.resize(static_cast<std::size_t>(count * row * from));
    reader.read_stored(stored, begin, count, values.data());
    if (stored.dtype != spec.dtype) {
      converted.resize(static_cast<std::size_t>(count * row * to));
      convert_elements(stored.dtype, values.data(), spec.dtype, converted.data(), count * row);
      overflows +=
          count_overflows(stored.dtype, values.data(), spec.dtype, converted.data(), count * row);
    }
    writer.write(spec.name, begin * row * to, stored.dtype == spec.dtype ? values : converted);
  }
  if (overflows > 0)
    fmt::print(stderr, "{}: {} elements are beyond {} and become infinite.\n", spec.name, overflows,
               name_of(spec.dtype));
}

// The type a tensor is written in unless told. A run in f64 may keep its precision in a checkpoint,
// for itself alone.
DType default_dtype(const StoredTensor& stored, CheckpointKind kind) {
  const bool kept = kind == CheckpointKind::kCheckpoint && stored.dtype == DType::kF64;
  return kept ? DType::kF32 : stored.dtype;
}

// "5GB" in bytes: nothing where it is no size.
std::optional<std::int64_t> size_from(std::string_view text) {
  constexpr std::pair<std::string_view, std::int64_t> kUnits[] = {
      {"KiB", 1LL << 10}, {"MiB", 1LL << 20},    {"GiB", 1LL << 30}, {"KB", 1'000},
      {"MB", 1'000'000},  {"GB", 1'000'000'000}, {"B", 1},           {"", 1}};
  std::int64_t number = 0, bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 1) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : kUnits)
    if (unit == name && !__builtin_mul_overflow(number, factor, &bytes)) return bytes;
  return std::nullopt;
}

void export_model(const ExportOptions& options) {
  Problems problems;
  check_output_directory(options.out, problems);
  const auto most_bytes = size_from(options.max_shard_size);
  if (!most_bytes)
    problems.add(
        "--max-shard-size {}: is no size of 1 byte or more. Give bytes, or a number with KB, MB, "
        "GB, KiB, MiB or GiB.",
        options.max_shard_size);
  std::optional<CheckpointReader> opened;
  try {
    opened.emplace(options.checkpoint);
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<ConfigError>();
  CheckpointReader& reader = *opened;
  for (const auto& notice : reader.notices()) fmt::print(stderr, "{}\n", notice);
  const auto config = ModelConfig::parse(reader.header().model_config_json,
                                         options.checkpoint + " (/config/model)");
  const auto expected = tensors_of(config);
  reader.check_parameters(expected);
  reader.verify("/parameters/");  // nothing else is exported

  const auto dtype = dtype_from(options.dtype);
  std::map<std::string, const StoredTensor*> stored;
  for (const auto& tensor : reader.tensors()) stored[tensor.dataset] = &tensor;
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, shape] : expected) {
    specs.push_back(
        {name,
         dtype.value_or(default_dtype(*stored.at("/parameters/" + name), reader.header().kind)),
         shape});
  }
  PendingDirectory directory(options.out);
  for (const auto& file : reader.header().tokenizer) {
    write_file_atomically(directory.temporary() / file.name, file.bytes);
  }
  write_file_atomically(
      directory.temporary() / "config.json",
      config_with_dtype(reader.header().model_config_json, prevailing_dtype(specs)));
  SafetensorsModelWriter writer(directory.temporary(), specs, *most_bytes);
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
  const std::string files =
      writer.file_count() == 1 ? "" : fmt::format(" in {} files", writer.file_count());
  fmt::print(stderr, "exported {} tensors, mostly {},{} to {}\n", specs.size(),
             name_of(prevailing_dtype(specs)), files, options.out);
}

}  // namespace

void add_export_command(Commands& commands) {
  auto options = std::make_shared<ExportOptions>();
  commands
      .add("export", "A model file or checkpoint becomes a Hugging Face directory",
           {.body = [options](Job&) { export_model(*options); }})
      .option("--checkpoint", options->checkpoint, "model or checkpoint (.h5)", Need::kRequired)
      .option("--out", options->out, "directory to make; an empty one may be there",
              Need::kRequired)
      .choice(
          "--dtype", options->dtype, {"f32", "bf16", "f16"},
          "type of all weights, rounded to nearest even [each tensor's stored type; f32 where a "
          "checkpoint keeps f64]")
      .option(
          "--max-shard-size", options->max_shard_size,
          "most bytes of weights in one file (a larger tensor has a file of its own): a number, "
          "which KB, MB, GB, KiB, MiB or GiB may follow [50GB]")
      .footer(
          "Writes config.json (its dtype follows the weights), model.safetensors, or shards with "
          "their index,\nand the tokenizer files that came with the model. A training checkpoint "
          "gives its master weights.\nTensors pass through in blocks, so a model of any size needs "
          "a few MiB of memory.");
}

}  // namespace coppice
