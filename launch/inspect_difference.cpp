#include "launch/inspect_difference.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/layout.hpp"
#include "core/error.hpp"
#include "launch/inspect_checkpoint.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;

struct Difference {
  std::int64_t differing = 0, not_comparable = 0;
  std::int64_t at = -1;  // row-major index of the largest absolute difference
  double largest_absolute = 0, largest_relative = 0;

  void add(double a, double b, std::int64_t index) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    ++differing;
    if (!std::isfinite(a) || !std::isfinite(b)) {
      ++not_comparable;
      return;
    }
    // Halves first: the difference of the two largest numbers of f64 is none.
    const double most = std::max(std::abs(a), std::abs(b));
    const double relative = 2 * (std::abs(a / 2 - b / 2) / most);
    const double absolute = std::abs(a - b);
    largest_relative = std::max(largest_relative, relative);
    if (at < 0 || absolute > largest_absolute) {
      largest_absolute = absolute;
      at = index;
    }
  }
};

Difference compare(const CheckpointReader& a, const StoredTensor& in_a, const CheckpointReader& b,
                   const StoredTensor& in_b) {
  Difference difference;
  if (in_a.shape.numel() == 0) return difference;
  const std::int64_t rows = layout::rows_of(in_a.shape);
  const std::int64_t block = layout::block_rows(in_a.shape, DType::kF64);
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    const auto left = rows_in_f64(a, in_a, begin, count),
               right = rows_in_f64(b, in_b, begin, count);
    const std::int64_t first = begin * layout::row_elements(in_a.shape);
    for (std::size_t i = 0; i < left.size(); ++i)
      difference.add(left[i], right[i], first + static_cast<std::int64_t>(i));
  }
  return difference;
}

// Opened and compared with its checksums; the problems of both files are told together.
std::optional<CheckpointReader> checked(const std::filesystem::path& path, Problems& problems) {
  try {
    CheckpointReader reader(path);
    reader.verify();
    return reader;
  } catch (const DataError& error) {
    problems.add_all(error.problems());
    return std::nullopt;
  }
}

}  // namespace

Json describe_difference(const std::filesystem::path& path_a, const std::filesystem::path& path_b) {
  Problems problems;
  const auto a = checked(path_a, problems), b = checked(path_b, problems);
  problems.throw_if_any<DataError>();
  std::map<std::string, const StoredTensor*> in_b;
  for (const auto& tensor : b->tensors()) in_b[tensor.dataset] = &tensor;

  Json only_in_a = Json::array(), only_in_b = Json::array(), shapes = Json::array();
  Json tensors = Json::array();
  std::int64_t equal = 0;
  for (const auto& tensor : a->tensors()) {
    const auto found = in_b.find(tensor.dataset);
    if (found == in_b.end()) {
      only_in_a.push_back(tensor.dataset);
      continue;
    }
    const StoredTensor& other = *found->second;
    if (tensor.shape != other.shape) {
      shapes.push_back(
          {{"dataset", tensor.dataset}, {"a", shape_in_json(tensor)}, {"b", shape_in_json(other)}});
    } else {
      const Difference difference = compare(*a, tensor, *b, other);
      equal += difference.differing == 0;
      tensors.push_back({{"dataset", tensor.dataset},
                         {"elements", tensor.shape.numel()},
                         {"differing", difference.differing},
                         {"not_comparable", difference.not_comparable},
                         {"largest_absolute", difference.largest_absolute},
                         {"largest_relative", difference.largest_relative}});
      if (difference.at >= 0) tensors.back()["largest_at"] = difference.at;
    }
    in_b.erase(found);
  }
  for (const auto& [dataset, tensor] : in_b) only_in_b.push_back(dataset);
  Json json;
  json["a"] = path_a.string();
  json["b"] = path_b.string();
  json["step_a"] = a->header().step;
  json["step_b"] = b->header().step;
  json["same_config"] = a->header().model_config_json == b->header().model_config_json;
  json["tensors_equal"] = equal;
  json["only_in_a"] = only_in_a;
  json["only_in_b"] = only_in_b;
  json["other_shape"] = shapes;
  json["tensors"] = tensors;
  return json;
}

}  // namespace coppice
