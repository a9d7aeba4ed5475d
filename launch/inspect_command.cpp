#include "launch/inspect_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "core/regular_file.hpp"
#include "launch/inspect_checkpoint.hpp"
#include "launch/inspect_difference.hpp"
#include "launch/inspect_rollouts.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct InspectOptions {
  std::string file;
  std::optional<std::string> other;
  bool tensors = false, verify = false, diff = false, json = false;
};

bool is_hdf5(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  char signature[8] = {};
  stream.read(signature, sizeof(signature));
  return std::string_view(signature, 8) == "\x89HDF\r\n\x1a\n";
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
    const auto not_finite = tensor["not_finite"].get<std::int64_t>();
    fmt::print("{:<64} {:<5} {:<16} norm {:<12.6g} {}{}\n", tensor["dataset"].get<std::string>(),
               tensor["dtype"].get<std::string>(), tensor["shape"].dump(),
               tensor["norm"].get<double>(),
               tensor.contains("checksum") ? tensor["checksum"].get<std::string>() : "",
               not_finite == 0 ? "" : fmt::format("  {} elements not finite", not_finite));
  }
}

// One line a tensor that differs, and what is not in both.
void print_difference(const Json& json) {
  for (const auto& tensor : json["tensors"]) {
    if (tensor["differing"] == 0) continue;
    fmt::print(
        "{:<64} largest absolute {:.3e}  relative {:.3e}  {} of {} elements{}\n",
        tensor["dataset"].get<std::string>(), tensor["largest_absolute"].get<double>(),
        tensor["largest_relative"].get<double>(), tensor["differing"].get<std::int64_t>(),
        tensor["elements"].get<std::int64_t>(),
        tensor["not_comparable"] == 0
            ? ""
            : fmt::format("; {} not comparable", tensor["not_comparable"].get<std::int64_t>()));
  }
  for (const auto& tensor : json["other_shape"])
    fmt::print("{:<64} shape {} and {}\n", tensor["dataset"].get<std::string>(), tensor["a"].dump(),
               tensor["b"].dump());
  for (const char* key : {"only_in_a", "only_in_b"})
    for (const auto& dataset : json[key])
      fmt::print("{:<64} only in {}\n", dataset.get<std::string>(),
                 json[key[8] == 'a' ? "a" : "b"].get<std::string>());
  fmt::print("{} of {} tensors in both are equal; steps {} and {}; config {}\n",
             json["tensors_equal"].get<std::int64_t>(), json["tensors"].size(),
             json["step_a"].get<std::int64_t>(), json["step_b"].get<std::int64_t>(),
             json["same_config"] == true ? "the same" : "another");
}

void print_json(const Json& json) {
  // Bytes of a foreign file that are no UTF-8 must not end the listing.
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void check_readable(const std::string& file, Problems& problems) {
  if (const std::string why = why_unreadable(file); !why.empty())
    problems.add("{}: there is no file of this name that can be read ({}). Name another.", file,
                 why);
}

void inspect_difference(const InspectOptions& options) {
  Problems problems;
  for (const std::string& file : {options.file, *options.other}) {
    check_readable(file, problems);
    if (problems.empty() && !is_hdf5(file))
      problems.add("{}: is no model or checkpoint, so --diff cannot compare it.", file);
  }
  problems.throw_if_any<DataError>();
  const Json json = describe_difference(options.file, *options.other);
  options.json ? print_json(json) : print_difference(json);
}

void inspect(const InspectOptions& options) {
  Problems usage;
  if (options.diff && !options.other)
    usage.add("--diff: a second file is missing. Give two: inspect --diff A B.");
  if (!options.diff && options.other)
    usage.add("{}: a second file needs --diff. Leave it out, or compare: inspect --diff A B.",
              *options.other);
  if (options.diff && options.tensors)
    usage.add("--tensors: --diff lists the tensors already. Leave --tensors out.");
  usage.throw_if_any<ConfigError>();
  if (options.diff) return inspect_difference(options);

  Problems problems;
  check_readable(options.file, problems);
  problems.throw_if_any<DataError>();
  const fs::path path(options.file);
  const bool hdf5 = is_hdf5(path);
  if (!hdf5) {
    for (const auto& [flag, given] :
         {std::pair("--tensors", options.tensors), std::pair("--verify", options.verify)}) {
      if (given)
        usage.add("{}: {} is no model or checkpoint, so it has no tensors. Leave {} out.", flag,
                  options.file, flag);
    }
    usage.throw_if_any<ConfigError>();
  }
  const Json json =
      hdf5 ? describe_checkpoint(path, {.tensors = options.tensors, .verify = options.verify})
           : describe_rollouts(path);
  options.json ? print_json(json) : print_text(json);
}

}  // namespace

void add_inspect_command(Commands& commands) {
  auto options = std::make_shared<InspectOptions>();
  commands
      .add("inspect", "What a model, checkpoint or rollouts file holds",
           {.body = [options](Job&) { inspect(*options); }})
      .option("file", options->file, "file to look at; its kind is known by its content",
              Need::kRequired)
      .option("other", options->other, "second file, with --diff")
      .flag(
          "--tensors", options->tensors,
          "also list every tensor with its norm, which reads every value (models and checkpoints)")
      .flag("--verify", options->verify, "compare every value with its checksum first")
      .flag("--diff", options->diff,
            "how two models or checkpoints differ, tensor by tensor; checksums are compared first")
      .flag("--json", options->json, "print one JSON object")
      .footer(
          "Keys of --json for a model or checkpoint: file, kind (model|checkpoint), bytes,\n"
          "program_version (of its writer), step (attempted steps), applied_updates (checkpoint), "
          "grid\n(checkpoint: the ranks that wrote it, tensor, context, data), parameters "
          "(elements),\nparameter_tensors, dtypes (type -> tensors), checksums (all tensors have "
          "one), tokenizer\n(file names), config, trainer (checkpoint), tensors (with --tensors: "
          "dataset, dtype, shape,\nchecksum, norm (square root of the sum of squares, of the "
          "finite "
          "elements), not_finite (elements)),\nverified (with --verify; a wrong checksum is an "
          "error).\n"
          "With --diff: a, b (files), step_a, step_b, same_config, tensors_equal (number), "
          "only_in_a, "
          "only_in_b,\nother_shape (dataset, a, b), tensors (of both, with dataset, elements, "
          "differing (elements),\nnot_comparable (of these: one infinite or no number, the other "
          "not the same), largest_absolute |a - b|,\nlargest_at (its element, row-major), "
          "largest_relative |a - b| / max(|a|, |b|)).\n"
          "For rollouts: file, kind (rollouts), bytes, groups, responses, group_size, "
          "prompt_tokens,\n"
          "response_tokens, reward (each least, mean, most; null without any), loss_tokens,\n"
          "truncated_responses, rewards (responses with one), groups_with_reward_spread, "
          "old_logprobs,\nresponses_with_ref_logprobs, groups_with_advantages, largest_id, "
          "rows_grouped, rows_repeated.");
}

}  // namespace coppice
