#include "checkpoint/checkpoint_output.hpp"

#include <algorithm>
#include <vector>

#include "checkpoint/element_checksum.hpp"
#include "checkpoint/layout.hpp"
#include "core/build_config.hpp"
#include "core/convert.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

const std::byte* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

// Everything before the last slash, "" for the root.
std::string group_of(const std::string& dataset) { return dataset.substr(0, dataset.rfind('/')); }

}  // namespace

std::uint64_t in_stored_blocks(
    const std::string& dataset, DType stored, const Shard& shard, ConstTensorView values,
    Stream* stream, HostPieces& pieces,
    const std::function<void(std::int64_t begin, std::int64_t count, const std::byte* rows)>& put) {
  COPPICE_CHECK(values.is_contiguous() && values.shape() == shard.local_shape,
                "{}: values {} for a rectangle {}", dataset, values.shape(), shard.local_shape);
  if (values.numel() == 0) return 0;
  const std::int64_t rows = layout::rows_of(shard.local_shape);
  const std::int64_t row = layout::row_elements(shard.local_shape);
  const std::int64_t block = layout::block_rows(shard.local_shape, stored);
  const bool converts = stored != values.dtype();
  std::vector<std::byte> converted(
      static_cast<std::size_t>(converts ? std::min(block, rows) * row * size_of(stored) : 0));
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    const std::byte* elements = pieces.fetch(stream, values, begin * row, count * row);
    if (converts) {
      convert_elements(values.dtype(), elements, stored, converted.data(), count * row);
      elements = converted.data();
    }
    put(begin, count, elements);
    sum += rectangle_checksum(elements, size_of(stored), shard, begin, count);
  }
  return sum;
}

void CheckpointOutput::make_groups_for(const std::string& dataset) {
  COPPICE_CHECK(dataset.size() > 1 && dataset[0] == '/' && dataset.back() != '/',
                "{} is no dataset's path", dataset);
  const std::string group = group_of(dataset);
  if (group.empty() || groups_.contains(group)) return;
  make_groups_for(group);
  file_.make_group(group);
  groups_.insert(group);
}

void CheckpointOutput::write_text(const std::string& dataset, std::string_view text) {
  make_groups_for(dataset);
  file_.write_text(dataset, text);
  checksums_[dataset] = element_checksum(bytes_of(text), 1, 0, std::ssize(text));
}

void CheckpointOutput::write_bytes(const std::string& dataset, std::string_view bytes) {
  make_groups_for(dataset);
  file_.write_bytes(dataset, bytes);
  checksums_[dataset] = element_checksum(bytes_of(bytes), 1, 0, std::ssize(bytes));
}

void CheckpointOutput::write_header(const CheckpointHeader& header) {
  const bool is_checkpoint = header.kind == CheckpointKind::kCheckpoint;
  const std::string_view version =
      header.program_version.empty() ? build::kVersion : header.program_version;
  file_.set_attribute("/", "coppice_format", layout::kFormatVersion);
  file_.set_attribute("/", "kind", std::string_view(is_checkpoint ? "checkpoint" : "model"));
  file_.set_attribute("/", "step", header.step);
  file_.set_attribute("/", "program_version", version);
  write_text(layout::kModelConfig, header.model_config_json);
  if (is_checkpoint) {
    write_text(layout::kRunConfig, header.run_config_textproto);
    write_text(layout::kTrainerState, header.trainer_json);
    file_.make_group("/optimizer");
    groups_.insert("/optimizer");
    file_.set_attribute("/optimizer", "step", header.optimizer_step);
  }
  for (const auto& attached : header.tokenizer) {
    write_bytes("/tokenizer/" + attached.name, attached.bytes);
  }
  for (const auto& array : header.trainer_arrays) {
    const std::string dataset = "/trainer/" + array.name;
    const auto values = host_view(array.values.data(), Shape{std::ssize(array.values)});
    create(dataset, DType::kF64, values.shape());
    write(dataset, DType::kF64, Shard::whole(values.shape()), values);
  }
}

void CheckpointOutput::create(const std::string& dataset, DType stored, const Shape& shape,
                              Hdf5Allocation allocation) {
  make_groups_for(dataset);
  file_.create_tensor(dataset, stored, shape, allocation);
  checksums_[dataset] = 0;
}

void CheckpointOutput::write(const std::string& dataset, DType stored, const Shard& shard,
                             ConstTensorView values, Stream* stream) {
  checksums_[dataset] +=
      in_stored_blocks(dataset, stored, shard, values, stream, pieces_,
                       [&](std::int64_t begin, std::int64_t count, const std::byte* rows) {
                         file_.write_rows(dataset, stored, shard, begin, count, rows);
                       });
}

void CheckpointOutput::write_checksums(const std::map<std::string, std::uint64_t>& checksums) {
  file_.make_group(layout::kChecksums);
  for (const auto& [dataset, checksum] : checksums) {
    file_.set_attribute(layout::kChecksums, dataset, checksum);
  }
}

}  // namespace coppice
