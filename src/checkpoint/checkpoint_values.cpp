// Reading the values of a checkpoint: all checks first, then block by block into place.
#include <algorithm>
#include <set>
#include <string_view>

#include "checkpoint/checkpoint_reader_state.hpp"
#include "checkpoint/element_checksum.hpp"
#include "checkpoint/layout.hpp"
#include "core/convert.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

const StoredTensor* find(const std::vector<StoredTensor>& tensors, const std::string& dataset) {
  const auto found = std::ranges::lower_bound(tensors, dataset, {}, &StoredTensor::dataset);
  return found != tensors.end() && found->dataset == dataset ? &*found : nullptr;
}

std::string_view group_of(std::string_view dataset) {
  return dataset.substr(0, dataset.rfind('/'));
}

// Names and shapes: what is missing, of another shape, or in a group of the wanted ones unasked.
void match_names(const CheckpointFile& state,
                 const std::vector<std::pair<std::string, Shape>>& wanted, Problems& problems) {
  std::set<std::string_view> groups, names;
  for (const auto& [dataset, shape] : wanted) {
    groups.insert(group_of(dataset));
    names.insert(dataset);
    const StoredTensor* stored = find(state.tensors, dataset);
    if (stored == nullptr) {
      problems.add("{}: {} is missing (its shape would be {}).", state.path.string(), dataset,
                   shape);
    } else if (stored->shape != shape) {
      problems.add("{}: {} has shape {}; the model needs {}.", state.path.string(), dataset,
                   stored->shape, shape);
    }
  }
  for (const auto& stored : state.tensors) {
    if (groups.contains(group_of(stored.dataset)) && !names.contains(stored.dataset)) {
      problems.add("{}: {} is not part of this model.", state.path.string(), stored.dataset);
    }
  }
}

}  // namespace

std::uint64_t CheckpointFile::read_through(const StoredTensor& tensor) const {
  const Shard whole = Shard::whole(tensor.shape);
  const std::int64_t rows = tensor.shape.numel() == 0 ? 0 : layout::rows_of(tensor.shape);
  const std::int64_t block = layout::block_rows(tensor.shape, tensor.dtype);
  const std::int64_t row_bytes = layout::row_elements(tensor.shape) * size_of(tensor.dtype);
  std::vector<std::byte> elements(static_cast<std::size_t>(std::min(block, rows) * row_bytes));
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    file.read_rows(tensor.dataset, tensor.dtype, whole, begin, count, elements.data());
    sum += rectangle_checksum(elements.data(), size_of(tensor.dtype), whole, begin, count);
  }
  return sum;
}

void CheckpointFile::check_values(const StoredTensor& tensor, Problems& problems) const {
  if (tensor.checksum && read_through(tensor) != *tensor.checksum) {
    problems.add("{}: {} does not have its checksum (the file is damaged).", path.string(),
                 tensor.dataset);
  }
}

void CheckpointReader::verify() {
  Problems problems;
  for (const auto& tensor : state_->tensors) {
    try {
      state_->file.check_fits(tensor.dataset);
      state_->check_values(tensor, problems);
    } catch (const DataError& error) {
      problems.add_all(error.problems());
    }
  }
  problems.throw_if_any<DataError>();
  state_->verified = true;
}

void CheckpointReader::read_stored(const StoredTensor& tensor, std::int64_t begin,
                                   std::int64_t count, std::byte* target) const {
  COPPICE_CHECK(begin >= 0 && count >= 0 && begin + count <= layout::rows_of(tensor.shape),
                "rows {} to {} of {} {}", begin, begin + count, tensor.dataset, tensor.shape);
  if (count == 0 || tensor.shape.numel() == 0) return;
  state_->file.read_rows(tensor.dataset, tensor.dtype, Shard::whole(tensor.shape), begin, count,
                         target);
}

void CheckpointReader::check_parameters(std::span<const ExpectedTensor> expected) const {
  std::vector<std::pair<std::string, Shape>> wanted;
  for (const auto& [name, shape] : expected) wanted.emplace_back("/parameters/" + name, shape);
  Problems problems;
  match_names(*state_, wanted, problems);
  problems.throw_if_any<DataError>();
}

void CheckpointReader::read(std::span<const StateTensor> wanted) const {
  Problems problems;
  std::vector<std::pair<std::string, Shape>> names;
  for (const auto& tensor : wanted) names.emplace_back(tensor.dataset, tensor.shard.global_shape);
  match_names(*state_, names, problems);
  if (problems.empty() && !state_->verified) {
    for (const auto& tensor : wanted) {
      try {
        state_->file.check_fits(tensor.dataset);
        state_->check_values(*find(state_->tensors, tensor.dataset), problems);
      } catch (const DataError& error) {
        problems.add_all(error.problems());
      }
    }
  }
  problems.throw_if_any<DataError>();

  std::vector<std::byte> stored_rows;
  for (const auto& tensor : wanted) {
    const StoredTensor& stored = *find(state_->tensors, tensor.dataset);
    const Shape& local = tensor.shard.local_shape;
    COPPICE_CHECK(tensor.local.is_contiguous() && tensor.local.shape() == local,
                  "{}: {} to be read into {}", tensor.dataset, local, tensor.local.shape());
    if (local.numel() == 0) continue;
    const std::int64_t rows = layout::rows_of(local), row = layout::row_elements(local);
    const DType wanted_dtype = tensor.local.dtype();
    const bool converts = stored.dtype != wanted_dtype;
    const std::int64_t block = converts ? layout::block_rows(local, stored.dtype) : rows;
    if (converts) {
      stored_rows.resize(
          static_cast<std::size_t>(std::min(block, rows) * row * size_of(stored.dtype)));
    }
    for (std::int64_t begin = 0; begin < rows; begin += block) {
      const std::int64_t count = std::min(block, rows - begin);
      std::byte* target = tensor.local.bytes() + begin * row * size_of(wanted_dtype);
      state_->file.read_rows(tensor.dataset, stored.dtype, tensor.shard, begin, count,
                             converts ? stored_rows.data() : target);
      if (converts) {
        convert_elements(stored.dtype, stored_rows.data(), wanted_dtype, target, count * row);
      }
    }
  }
}

}  // namespace coppice
