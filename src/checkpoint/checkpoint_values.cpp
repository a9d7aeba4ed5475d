// Reading the values of a checkpoint: all checks first, then block by block into place. How values
// are compared with their checksums is in checkpoint_verification.cpp.
#include <algorithm>
#include <set>
#include <string_view>

#include "checkpoint/checkpoint_reader_state.hpp"
#include "checkpoint/joint_tensors.hpp"
#include "checkpoint/layout.hpp"
#include "core/convert.hpp"
#include "core/error.hpp"
#include "parallel/exchange.hpp"

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

// One rectangle, converted block by block where the file's type is another.
void read_rectangle(const CheckpointFile& state, const StateTensor& tensor) {
  const StoredTensor& stored = *find(state.tensors, tensor.dataset);
  const Shape& local = tensor.shard.local_shape;
  COPPICE_CHECK(tensor.local.is_contiguous() && tensor.local.shape() == local,
                "{}: {} to be read into {}", tensor.dataset, local, tensor.local.shape());
  if (local.numel() == 0) return;
  const std::int64_t rows = layout::rows_of(local), row = layout::row_elements(local);
  const DType wanted = tensor.local.dtype();
  const bool converts = stored.dtype != wanted;
  const std::int64_t block = converts ? layout::block_rows(local, stored.dtype) : rows;
  std::vector<std::byte> stored_rows(
      static_cast<std::size_t>(converts ? std::min(block, rows) * row * size_of(stored.dtype) : 0));
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    std::byte* target = tensor.local.bytes() + begin * row * size_of(wanted);
    state.file.read_rows(tensor.dataset, stored.dtype, tensor.shard, begin, count,
                         converts ? stored_rows.data() : target);
    if (converts) convert_elements(stored.dtype, stored_rows.data(), wanted, target, count * row);
  }
}

}  // namespace

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
  std::vector<std::pair<std::string, Shape>> names;
  if (state_->world == nullptr) {
    for (const auto& tensor : wanted) names.emplace_back(tensor.dataset, tensor.shard.global_shape);
  } else {
    // A rank may want nothing of a tensor that others want: what is checked is what all want.
    const std::vector<DType> any(wanted.size(), DType::kF32);
    for (const auto& tensor : join_tensors(*state_->world, wanted, any))
      names.emplace_back(tensor.dataset, tensor.shape);
  }
  Problems problems;
  match_names(*state_, names, problems);
  if (problems.empty() && !state_->verified) {
    std::vector<const StoredTensor*> list;
    for (const auto& [dataset, shape] : names) list.push_back(find(state_->tensors, dataset));
    state_->check_all(list, problems);
  }
  problems.throw_if_any<DataError>();
  const auto fill = [&] {
    for (const auto& tensor : wanted) read_rectangle(*state_, tensor);
  };
  if (state_->world == nullptr) return fill();
  succeed_together(*state_->world, fill);
}

}  // namespace coppice
