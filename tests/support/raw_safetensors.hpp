#pragma once
// Safetensors directories taken apart and put together byte by byte, from the format's description
// and without the program's own reader or writer: an oracle for both.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary_directory.hpp"

namespace coppice::test {

struct RawTensor {
  std::string dtype, bytes;
  nlohmann::json shape;
  friend bool operator==(const RawTensor&, const RawTensor&) = default;
};
using RawModel = std::map<std::string, RawTensor>;

/// All tensors of one file.
inline RawModel raw_file(const std::filesystem::path& path) {
  RawModel model;
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") continue;
    const std::size_t begin = value["data_offsets"][0], end = value["data_offsets"][1];
    model[key] = {value["dtype"], bytes.substr(8 + length + begin, end - begin), value["shape"]};
  }
  return model;
}

/// All tensors of a directory's model*.safetensors.
inline RawModel raw_model(const std::filesystem::path& directory) {
  RawModel model;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors"))
      model.merge(raw_file(file.path()));
  }
  return model;
}

inline void write_raw_file(const std::filesystem::path& path, const RawModel& model) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : model) {
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}};
    header[name]["data_offsets"] = {data.size(), data.size() + tensor.bytes.size()};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
}

inline void write_raw_model(const std::filesystem::path& directory, const RawModel& model) {
  write_raw_file(directory / "model.safetensors", model);
}

/// Dealt in turn to so many shards, with their index.
inline void write_raw_shards(const std::filesystem::path& directory, const RawModel& model,
                             std::size_t count) {
  std::vector<RawModel> shards(count);
  nlohmann::json index;
  std::size_t i = 0;
  for (const auto& [name, tensor] : model) {
    index["weight_map"][name] = "part-" + std::to_string(i % count) + ".safetensors";
    shards[i++ % count][name] = tensor;
  }
  for (std::size_t shard = 0; shard < count; ++shard)
    write_raw_file(directory / ("part-" + std::to_string(shard) + ".safetensors"), shards[shard]);
  write_file(directory / "model.safetensors.index.json", index.dump());
}

}  // namespace coppice::test
