// Writing a checkpoint: header first, tensors as they come, checksums last, then flush and rename.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/element_checksum.hpp"
#include "checkpoint/hdf5_file.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/pending_file.hpp"
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

struct CheckpointWriter::State {
  explicit State(const std::filesystem::path& path)
      : pending(path), file(Hdf5File::create(pending.temporary(), path)) {}

  struct Written {
    DType dtype;
    Shape shape;
    std::int64_t elements = 0;
  };
  PendingFile pending;
  Hdf5File file;
  std::set<std::string> groups;
  std::map<std::string, Written> tensors;
  std::map<std::string, std::uint64_t> checksums;

  void make_groups_for(const std::string& dataset) {
    COPPICE_CHECK(dataset.size() > 1 && dataset[0] == '/' && dataset.back() != '/',
                  "{} is no dataset's path", dataset);
    const std::string group = group_of(dataset);
    if (group.empty() || groups.contains(group)) return;
    make_groups_for(group);
    file.make_group(group);
    groups.insert(group);
  }
  void write_text(const std::string& dataset, std::string_view text) {
    make_groups_for(dataset);
    file.write_text(dataset, text);
    checksums[dataset] = element_checksum(bytes_of(text), 1, 0, std::ssize(text));
  }
  void write_bytes(const std::string& dataset, std::string_view bytes) {
    make_groups_for(dataset);
    file.write_bytes(dataset, bytes);
    checksums[dataset] = element_checksum(bytes_of(bytes), 1, 0, std::ssize(bytes));
  }
};

CheckpointWriter::CheckpointWriter(std::filesystem::path path, CheckpointHeader header)
    : state_(std::make_unique<State>(path)) {
  State& state = *state_;
  const bool is_checkpoint = header.kind == CheckpointKind::kCheckpoint;
  if (header.program_version.empty()) header.program_version = build::kVersion;
  state.file.set_attribute("/", "coppice_format", layout::kFormatVersion);
  state.file.set_attribute("/", "kind", std::string_view(is_checkpoint ? "checkpoint" : "model"));
  state.file.set_attribute("/", "step", header.step);
  state.file.set_attribute("/", "program_version", std::string_view(header.program_version));
  state.write_text(layout::kModelConfig, header.model_config_json);
  if (is_checkpoint) {
    state.write_text(layout::kRunConfig, header.run_config_textproto);
    state.write_text(layout::kTrainerState, header.trainer_json);
    state.file.make_group("/optimizer");
    state.groups.insert("/optimizer");
    state.file.set_attribute("/optimizer", "step", header.optimizer_step);
  }
  for (const auto& attached : header.tokenizer) {
    state.write_bytes("/tokenizer/" + attached.name, attached.bytes);
  }
  for (const auto& array : header.trainer_arrays) {
    const auto values = host_view(array.values.data(), Shape{std::ssize(array.values)});
    write("/trainer/" + array.name, DType::kF64, Shard::whole(values.shape()), values);
  }
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::write(const std::string& dataset, DType stored, const Shard& shard,
                             ConstTensorView values) {
  COPPICE_CHECK(values.is_contiguous() && values.shape() == shard.local_shape,
                "{}: values {} for a rectangle {}", dataset, values.shape(), shard.local_shape);
  State& state = *state_;
  const auto [entry, is_new] =
      state.tensors.try_emplace(dataset, State::Written{stored, shard.global_shape});
  if (is_new) {
    state.make_groups_for(dataset);
    state.file.create_tensor(dataset, stored, shard.global_shape);
    state.checksums[dataset] = 0;
  }
  COPPICE_CHECK(entry->second.dtype == stored && entry->second.shape == shard.global_shape,
                "{}: its rectangles disagree", dataset);
  entry->second.elements += values.numel();
  if (values.numel() == 0) return;

  const std::int64_t rows = layout::rows_of(shard.local_shape);
  const std::int64_t row = layout::row_elements(shard.local_shape);
  const std::int64_t block = layout::block_rows(shard.local_shape, stored);
  const bool converts = stored != values.dtype();
  std::vector<std::byte> converted(
      static_cast<std::size_t>(converts ? std::min(block, rows) * row * size_of(stored) : 0));
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    const std::byte* elements = values.bytes() + begin * row * size_of(values.dtype());
    if (converts) {
      convert_elements(values.dtype(), elements, stored, converted.data(), count * row);
      elements = converted.data();
    }
    state.file.write_rows(dataset, stored, shard, begin, count, elements);
    state.checksums[dataset] += rectangle_checksum(elements, size_of(stored), shard, begin, count);
  }
}

void CheckpointWriter::commit() {
  State& state = *state_;
  for (const auto& [dataset, written] : state.tensors) {
    COPPICE_CHECK(written.elements == written.shape.numel(), "{}: {} of {} elements are written",
                  dataset, written.elements, written.shape.numel());
  }
  state.file.make_group(layout::kChecksums);
  for (const auto& [dataset, checksum] : state.checksums) {
    state.file.set_attribute(layout::kChecksums, dataset, checksum);
  }
  state.file.close();
  state.pending.commit();
}

void save_checkpoint(const std::filesystem::path& path, const CheckpointHeader& header,
                     std::span<const StateTensor> tensors, bool keep_precision) {
  CheckpointWriter writer(path, header);
  for (const auto& tensor : tensors) {
    const DType stored = keep_precision ? tensor.local.dtype() : DType::kF32;
    writer.write(tensor.dataset, stored, tensor.shard, tensor.local);
  }
  writer.commit();
}

}  // namespace coppice
