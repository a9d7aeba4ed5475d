#include "launch/inspect_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "checkpoint/layout.hpp"
#include "core/convert.hpp"
#include "core/error.hpp"
#include "launch/run_config.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json parsed_or_text(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_discarded() ? Json(text) : json;
}

// The norm is of the finite elements: one NaN among millions would leave nothing to tell.
class Norm {
 public:
  void add(std::span<const double> values) {
    double most = 0;
    for (const double value : values)
      if (std::isfinite(value)) most = std::max(most, std::abs(value));
    // Squares of f64 may overflow or vanish, so values are scaled, by a power of two: exactly.
    const int exponent = most > 0 ? std::max(std::ilogb(most), kLeastExponent) : kLeastExponent;
    if (exponent > exponent_) {
      squares_ = std::ldexp(squares_, 2 * (exponent_ - exponent));
      exponent_ = exponent;
    }
    const double scale = std::ldexp(1.0, -exponent_);
    for (const double value : values) {
      if (std::isfinite(value))
        squares_ += value * scale * (value * scale);
      else
        ++not_finite_;
    }
  }
  double value() const { return std::ldexp(std::sqrt(squares_), exponent_); }
  std::int64_t not_finite() const { return not_finite_; }

 private:
  static constexpr int kLeastExponent = -1000;

  int exponent_ = kLeastExponent;
  double squares_ = 0;  // of value / 2^exponent_
  std::int64_t not_finite_ = 0;
};

Norm norm_of(const CheckpointReader& reader, const StoredTensor& tensor) {
  Norm norm;
  if (tensor.shape.numel() == 0) return norm;
  const std::int64_t rows = layout::rows_of(tensor.shape);
  const std::int64_t block = layout::block_rows(tensor.shape, DType::kF64);
  for (std::int64_t begin = 0; begin < rows; begin += block)
    norm.add(rows_in_f64(reader, tensor, begin, std::min(block, rows - begin)));
  return norm;
}

Json describe_tensor(const CheckpointReader& reader, const StoredTensor& tensor) {
  Json json = {{"dataset", tensor.dataset},
               {"dtype", name_of(tensor.dtype)},
               {"shape", shape_in_json(tensor)}};
  if (tensor.checksum) json["checksum"] = fmt::format("{:016x}", *tensor.checksum);
  const Norm norm = norm_of(reader, tensor);
  json["norm"] = norm.value();
  json["not_finite"] = norm.not_finite();
  return json;
}

void verify_all(CheckpointReader& reader) {
  const bool has_checksums = std::ranges::all_of(
      reader.tensors(), [](const auto& tensor) { return tensor.checksum.has_value(); });
  if (!has_checksums)
    throw DataError({fmt::format(
        "{}: has no checksums, so --verify has nothing to compare with. Leave --verify out.",
        reader.path().string())});
  reader.verify();
}

}  // namespace

std::vector<double> rows_in_f64(const CheckpointReader& reader, const StoredTensor& tensor,
                                std::int64_t begin, std::int64_t count) {
  const std::int64_t elements = count * layout::row_elements(tensor.shape);
  std::vector<std::byte> stored(static_cast<std::size_t>(elements * size_of(tensor.dtype)));
  reader.read_stored(tensor, begin, count, stored.data());
  std::vector<double> values(static_cast<std::size_t>(elements));
  convert_elements(tensor.dtype, stored.data(), DType::kF64,
                   std::as_writable_bytes(std::span(values)).data(), elements);
  return values;
}

Json shape_in_json(const StoredTensor& tensor) {
  Json shape = Json::array();
  for (const std::int64_t extent : tensor.shape.extents()) shape.push_back(extent);
  return shape;
}

Json describe_checkpoint(const fs::path& path, CheckpointDetails details) {
  CheckpointReader reader(path);
  if (details.verify) verify_all(reader);
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
  json["bytes"] = fs::file_size(path);
  json["program_version"] = header.program_version;
  json["step"] = header.step;
  if (is_checkpoint) {
    json["applied_updates"] = header.optimizer_step;
    if (const auto grid = grid_of(header.run_config_textproto))
      json["grid"] = {{"tensor", grid->tensor}, {"context", grid->context}, {"data", grid->data}};
  }
  json["parameters"] = parameters;
  json["parameter_tensors"] = count;
  json["dtypes"] = dtypes;
  json["checksums"] = checksums;
  if (details.verify) json["verified"] = true;
  json["tokenizer"] = Json::array();
  for (const auto& file : header.tokenizer) json["tokenizer"].push_back(file.name);
  json["config"] = parsed_or_text(header.model_config_json);
  if (is_checkpoint) json["trainer"] = parsed_or_text(header.trainer_json);
  if (details.tensors) {
    json["tensors"] = Json::array();
    for (const auto& tensor : reader.tensors())
      json["tensors"].push_back(describe_tensor(reader, tensor));
  }
  return json;
}

}  // namespace coppice
