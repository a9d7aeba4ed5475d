// A directory of safetensors: which of its files hold the model, and whether they agree.
#include <set>
#include <system_error>

#include "checkpoint/safetensors.hpp"
#include "checkpoint/small_file.hpp"
#include "checkpoint/strict_json.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// name -> shard file, from the index.
std::map<std::string, std::string> read_index(const fs::path& path, Problems& problems) {
  std::map<std::string, std::string> shard_of;
  const auto json = parse_strict_json(read_small_file(path), path.string(), problems);
  if (!json) return shard_of;
  if (!json->is_object() || !json->contains("weight_map") || !(*json)["weight_map"].is_object()) {
    problems.add("{}: weight_map is missing or no object.", path.string());
    return shard_of;
  }
  for (const auto& [name, file] : (*json)["weight_map"].items()) {
    const auto shard = file.is_string() ? file.get<std::string>() : std::string();
    // A shard lies beside its index; a path could lead anywhere.
    if (shard.empty() || shard.find('/') != shard.npos || shard == "." || shard == "..") {
      problems.add("{}: weight_map \"{}\" names {} (not a file beside the index).", path.string(),
                   name, file.dump());
      continue;
    }
    shard_of.emplace(name, shard);
  }
  return shard_of;
}

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& directory) {
  const auto add = [&](const fs::path& path, Problems& problems) -> const SafetensorsFile* {
    try {
      files_.push_back(std::make_unique<SafetensorsFile>(path));
      return files_.back().get();
    } catch (const DataError& error) {
      problems.add_all(error.problems());
    } catch (const IoError& error) {
      problems.add("{}", error.what());
    }
    return nullptr;
  };
  // A link that leads nowhere, or what may not be looked at, is there: what is wrong with it is
  // told when it is opened.
  const auto is_there = [&](const char* name) {
    std::error_code error;
    return fs::symlink_status(directory / name, error).type() != fs::file_type::not_found;
  };
  Problems problems;
  if (is_there(kSingle)) {
    if (const auto* file = add(directory / kSingle, problems)) {
      for (const auto& entry : file->entries()) tensors_.emplace(entry.name, Source{file, &entry});
    }
  } else if (is_there(kIndex)) {
    const auto shard_of = read_index(directory / kIndex, problems);
    std::set<std::string> shards;
    for (const auto& [name, shard] : shard_of) shards.insert(shard);
    std::set<std::string> unreadable;
    for (const auto& shard : shards) {
      const auto* file = add(directory / shard, problems);
      if (!file) {
        unreadable.insert(shard);
        continue;
      }
      for (const auto& entry : file->entries()) {
        const auto named = shard_of.find(entry.name);
        if (named == shard_of.end()) {
          problems.add("{}: tensor \"{}\" is not in {}.", file->path().string(), entry.name,
                       kIndex);
        } else if (named->second != shard) {
          problems.add("{}: tensor \"{}\" belongs to {} by {}.", file->path().string(), entry.name,
                       named->second, kIndex);
        } else {
          tensors_.emplace(entry.name, Source{file, &entry});
        }
      }
    }
    for (const auto& [name, shard] : shard_of) {
      if (!tensors_.contains(name) && !unreadable.contains(shard)) {
        problems.add("{}: tensor \"{}\" is missing, though {} names this file for it.",
                     (directory / shard).string(), name, kIndex);
      }
    }
  } else {
    problems.add(
        "{}: has neither {} nor {} (only safetensors are read). Convert other weights with "
        "transformers' save_pretrained.",
        directory.string(), kSingle, kIndex);
  }
  problems.throw_if_any<DataError>();
}

}  // namespace coppice
