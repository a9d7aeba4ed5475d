#include "launch/hf_directory.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/small_file.hpp"

namespace coppice {
namespace {

constexpr std::string_view kTokenizerFiles[] = {
    "tokenizer.json",     "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",         "tokenizer.model",       "added_tokens.json",       "chat_template.jinja",
    "chat_template.json", "generation_config.json"};

// As PyTorch spells it.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF64:
      return "float64";
    default:
      return "float32";
  }
}

}  // namespace

std::vector<AttachedFile> tokenizer_files_of(const std::filesystem::path& directory) {
  std::vector<AttachedFile> files;
  for (const std::string_view name : kTokenizerFiles) {
    std::error_code error;
    // A link that leads nowhere is there, and is told when it is read.
    const auto status = std::filesystem::symlink_status(directory / name, error);
    if (status.type() == std::filesystem::file_type::not_found) continue;
    files.push_back({std::string(name), read_small_file(directory / name)});
  }
  return files;
}

std::vector<std::filesystem::path> inputs_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> inputs;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none)) {
    const std::string name = entry.path().filename().string();
    const bool is_tokenizer = std::ranges::find(kTokenizerFiles, name) != std::end(kTokenizerFiles);
    if (is_tokenizer || name == "config.json" || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json"))
      inputs.push_back(entry.path());
  }
  return inputs;
}

std::string config_with_dtype(const std::string& config_json, DType dtype) {
  auto config = nlohmann::ordered_json::parse(config_json);
  const char* key = config.contains("dtype") ? "dtype" : "torch_dtype";
  const std::string wanted = torch_name(dtype);
  // Without the key transformers takes float32.
  std::string said = "float32";
  if (config.contains(key) && config[key].is_string()) said = config[key].get<std::string>();
  if (said.starts_with("torch.")) said.erase(0, 6);
  if (said == wanted) return config_json;
  config[key] = wanted;
  return config.dump(2) + "\n";
}

}  // namespace coppice
