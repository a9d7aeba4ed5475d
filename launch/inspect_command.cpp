#include "launch/inspect_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "core/error.hpp"
#include "launch/inspect_rollouts.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  std::string file;
  bool tensors = false, json = false;
};

bool is_hdf5(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  char signature[8] = {};
  stream.read(signature, sizeof(signature));
  return std::string_view(signature, 8) == "\x89HDF\r\n\x1a\n";
}

Json parsed_or_text(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_discarded() ? Json(text) : json;
}

Json describe_tensor(const StoredTensor& tensor) {
  Json shape = Json::array();
  for (std::int64_t extent : tensor.shape.extents()) shape.push_back(extent);
  Json json = {{"dataset", tensor.dataset}, {"dtype", name_of(tensor.dtype)}, {"shape", shape}};
  if (tensor.checksum) json["checksum"] = fmt::format("{:016x}", *tensor.checksum);
  return json;
}

Json describe_checkpoint(const fs::path& path, bool with_tensors) {
  const CheckpointReader reader(path);
  const auto& header = reader.header();
  const bool is_checkpoint = header.kind == CheckpointKind::kCheckpoint;
  std::int64_t parameters = 0, count = 0;
  std::map<std::string, std::int64_t> dtypes;
  bool checksums = true;
  for (const auto& tensor : reader.tensors()) {
    checksums = checksums && tensor.checksum.has_value();
    if (!tensor.dataset.starts_with("/parameters/")) continue;
    parameters += tensor.shape.numel();
    ++count;
    ++dtypes[std::string(name_of(tensor.dtype))];
  }
  Json json;
  json["file"] = path.string();
  json["kind"] = is_checkpoint ? "checkpoint" : "model";
  json["program_version"] = header.program_version;
  json["bytes"] = fs::file_size(path);
  json["step"] = header.step;
  if (is_checkpoint) json["applied_updates"] = header.optimizer_step;
  json["parameters"] = parameters;
  json["parameter_tensors"] = count;
  json["dtypes"] = dtypes;
  json["checksums"] = checksums;
  json["tokenizer"] = Json::array();
  for (const auto& file : header.tokenizer) json["tokenizer"].push_back(file.name);
  json["config"] = parsed_or_text(header.model_config_json);
  if (is_checkpoint) json["trainer"] = parsed_or_text(header.trainer_json);
  if (with_tensors) {
    json["tensors"] = Json::array();
    for (const auto& tensor : reader.tensors()) json["tensors"].push_back(describe_tensor(tensor));
  }
  return json;
}

// One line a key; nested objects on their line as JSON, tensors one a line.
void print_text(const Json& json) {
  for (const auto& [key, value] : json.items()) {
    if (key == "tensors") continue;
    fmt::print("{:<28}{}\n", key,
               value.is_string() ? value.get<std::string>()
               : value.is_null() ? std::string("none")
                                 : value.dump());
  }
  if (!json.contains("tensors")) return;
  fmt::print("\n");
  for (const auto& tensor : json["tensors"]) {
    fmt::print("{:<64} {:<5} {:<16} {}\n", tensor["dataset"].get<std::string>(),
               tensor["dtype"].get<std::string>(), tensor["shape"].dump(),
               tensor.contains("checksum") ? tensor["checksum"].get<std::string>() : "");
  }
}

void inspect(const Options& options) {
  const fs::path path(options.file);
  if (!fs::is_regular_file(path) || !std::ifstream(path)) {
    throw DataError(
        {fmt::format("{}: there is no file of this name that can be read.", options.file)});
  }
  const bool hdf5 = is_hdf5(path);
  if (options.tensors && !hdf5) {
    throw ConfigError(
        {fmt::format("--tensors: {} is no model or checkpoint, so it has no tensors. "
                     "Leave --tensors out.",
                     options.file)});
  }
  const Json json = hdf5 ? describe_checkpoint(path, options.tensors) : describe_rollouts(path);
  if (options.json) {
    // Bytes of a foreign file that are no UTF-8 must not end the listing.
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_text(json);
  }
}

}  // namespace

void add_inspect_command(Commands& commands) {
  auto options = std::make_shared<Options>();
  commands
      .add("inspect", "What a model, checkpoint or rollouts file holds",
           {.body = [options](Job&) { inspect(*options); }})
      .option("file", options->file, "file to look at; its kind is known by its content",
              Need::kRequired)
      .flag("--tensors", options->tensors, "also list every tensor (models and checkpoints)")
      .flag("--json", options->json, "print one JSON object")
      .footer(
          "Keys of --json for a model or checkpoint: file, kind (model|checkpoint), "
          "program_version, "
          "bytes,\nstep (attempted steps), applied_updates (checkpoint), parameters (elements), "
          "parameter_tensors,\ndtypes (type -> tensors), checksums (all tensors have one), "
          "tokenizer "
          "(file names), config,\ntrainer (checkpoint), tensors (with --tensors: dataset, dtype, "
          "shape, checksum).\n"
          "For rollouts: file, kind (rollouts), bytes, groups, responses, group_size, "
          "prompt_tokens,\n"
          "response_tokens, reward (each least, mean, most; null without any), loss_tokens,\n"
          "truncated_responses, rewards (responses with one), groups_with_reward_spread, "
          "old_logprobs,\nresponses_with_ref_logprobs, groups_with_advantages, largest_id, "
          "rows_grouped, rows_repeated.");
}

}  // namespace coppice
