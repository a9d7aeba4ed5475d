#include "end_to_end/run_files.hpp"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "core/convert.hpp"
#include "core/rng.hpp"

namespace coppice::test {
namespace {

template <class T>
T element(const std::vector<std::byte>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
  return value;
}

double as_double(DType dtype, const std::vector<std::byte>& bytes, std::size_t i) {
  if (dtype == DType::kF64) return element<double>(bytes, i);
  if (dtype == DType::kF32) return element<float>(bytes, i);
  if (dtype == DType::kBF16) return to_f32(element<BF16>(bytes, i));
  if (dtype == DType::kF16) return to_f32(element<F16>(bytes, i));
  throw std::runtime_error("a tensor of another type than floats");
}

std::vector<double> as_doubles(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = as_double(dtype, bytes, i);
  return values;
}

bool take_prefix(std::string& name, const std::string& prefix) {
  if (name.rfind(prefix, 0) != 0) return false;
  name.erase(0, prefix.size());
  return true;
}

}  // namespace

std::string golden_case(const std::string& name) {
  return std::string(COPPICE_SOURCE_DIR) + "/tests/golden/" + name;
}

std::vector<std::string> golden_case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_case("")))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Tensors safetensors_values(const std::string& path, const std::string& prefix) {
  Tensors tensors;
  const SafetensorsFile file(path);
  for (const auto& entry : file.entries()) {
    std::string name = entry.name;
    if (!take_prefix(name, prefix)) continue;
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
    file.read(entry, 0, bytes);
    tensors[name] = as_doubles(*dtype_from_safetensors(entry.dtype), bytes);
  }
  return tensors;
}

Tensors checkpoint_values(const std::string& path, const std::string& prefix) {
  Tensors tensors;
  const CheckpointReader reader(path);
  for (const auto& tensor : reader.tensors()) {
    std::string name = tensor.dataset;
    if (!take_prefix(name, prefix)) continue;
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(tensor.shape.numel() * size_of(tensor.dtype)));
    reader.read_stored(tensor, 0, tensor.shape[0], bytes.data());
    tensors[name] = as_doubles(tensor.dtype, bytes);
  }
  return tensors;
}

double distance(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) throw std::runtime_error("other tensors");
  double squares = 0;
  for (const auto& [name, values] : a) {
    const auto& others = b.at(name);
    if (values.size() != others.size()) throw std::runtime_error(name + " has another size");
    for (std::size_t i = 0; i < values.size(); ++i)
      squares += (values[i] - others[i]) * (values[i] - others[i]);
  }
  return std::sqrt(squares);
}

double distance_over_moved(const Tensors& a, const Tensors& b, const Tensors& start) {
  return distance(a, b) / distance(b, start);
}

Tensors zeros_like(const Tensors& tensors) {
  Tensors zeros = tensors;
  for (auto& [name, values] : zeros) std::fill(values.begin(), values.end(), 0.0);
  return zeros;
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> objects;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

std::string random_rollouts(const RolloutShape& shape, std::uint64_t seed) {
  const RandomStream random(seed, "rollouts");
  std::uint64_t drawn = 0;
  const auto below = [&](int bound) {
    return static_cast<int>(random.below(static_cast<std::uint64_t>(bound), drawn++));
  };
  const auto ids = [&](int count) {
    std::vector<int> values;
    for (int i = 0; i < count; ++i) values.push_back(below(shape.vocab_size));
    return values;
  };
  std::string text;
  for (int g = 0; g < shape.groups; ++g) {
    nlohmann::json group = {{"group", "g" + std::to_string(g)},
                            {"prompt_ids", ids(1 + below(shape.longest_prompt))},
                            {"responses", nlohmann::json::array()}};
    for (int r = 0; r < shape.responses; ++r) {
      const bool empty = g == 1 && r == 1;
      nlohmann::json response = {{"ids", ids(empty ? 0 : 1 + below(shape.longest_response))},
                                 {"reward", r + 0.25 * below(4)}};
      if (r == 2) {  // one response in each group does not learn from all of its tokens
        std::vector<int> mask(response["ids"].size(), 1);
        mask.front() = 0;
        response["loss_mask"] = mask;
      }
      group["responses"].push_back(response);
    }
    text += group.dump() + "\n";
  }
  return text;
}

nlohmann::json without_times(nlohmann::json step) {
  for (const char* key : {"step_seconds", "seconds", "rows_per_second", "logical_tokens_per_second",
                          "mfu", "peak_memory_bytes", "peak_resident_bytes"})
    step.erase(key);
  if (step.contains("communication"))
    for (auto& axis : step["communication"]) axis.erase("seconds");
  return step;
}

}  // namespace coppice::test
