// Writing a checkpoint from one process: header first, tensors as they come, checksums last, then
// flush and rename.
#include <map>
#include <utility>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checkpoint_output.hpp"
#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"

namespace coppice {

struct CheckpointWriter::State {
  explicit State(const std::filesystem::path& path)
      : pending(path), output(Hdf5File::create(pending.temporary(), path)) {}

  struct Written {
    DType dtype;
    Shape shape;
    std::int64_t elements = 0;
  };
  PendingFile pending;
  CheckpointOutput output;
  std::map<std::string, Written> tensors;
};

CheckpointWriter::CheckpointWriter(std::filesystem::path path, CheckpointHeader header)
    : state_(std::make_unique<State>(path)) {
  state_->output.write_header(header);
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::write(const std::string& dataset, DType stored, const Shard& shard,
                             ConstTensorView values, Stream* stream) {
  State& state = *state_;
  const auto [entry, is_new] =
      state.tensors.try_emplace(dataset, State::Written{stored, shard.global_shape});
  if (is_new) state.output.create(dataset, stored, shard.global_shape);
  COPPICE_CHECK(entry->second.dtype == stored && entry->second.shape == shard.global_shape,
                "{}: its rectangles disagree", dataset);
  state.output.write(dataset, stored, shard, values, stream);
  entry->second.elements += values.numel();
}

void CheckpointWriter::commit() {
  State& state = *state_;
  for (const auto& [dataset, written] : state.tensors) {
    COPPICE_CHECK(written.elements == written.shape.numel(), "{}: {} of {} elements are written",
                  dataset, written.elements, written.shape.numel());
  }
  state.output.write_checksums(state.output.checksums());
  state.output.close();
  state.pending.commit();
}

void save_checkpoint(const std::filesystem::path& path, const CheckpointHeader& header,
                     std::span<const StateTensor> tensors, bool keep_precision) {
  CheckpointWriter writer(path, header);
  for (const auto& tensor : tensors) {
    const DType stored = keep_precision ? tensor.local.dtype() : DType::kF32;
    writer.write(tensor.dataset, stored, tensor.shard, tensor.local, tensor.stream);
  }
  writer.commit();
}

}  // namespace coppice
