// Reading the values of a checkpoint: what names and shapes tell first, then values block by block
// into place, once, compared with their checksums on the way. A file that turns out damaged only
// then leaves nothing that could be taken for its values (docs/decisions/0008).
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "checkpoint/checkpoint_reader_state.hpp"
#include "checkpoint/element_checksum.hpp"
#include "checkpoint/joint_tensors.hpp"
#include "checkpoint/layout.hpp"
#include "core/convert.hpp"
#include "core/error.hpp"
#include "core/host_pieces.hpp"
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

// Elements that pass through the processor's nearest memory once, for their sum and conversion.
constexpr std::int64_t kNearBytes = std::int64_t{1} << 20;

enum class Counted { kNo, kYes };

// One rectangle, converted block by block where the file's type is another; the sum of its elements
// as stored, if they are counted.
std::uint64_t read_rectangle(const CheckpointFile& state, const StateTensor& tensor,
                             Counted counted, HostPieces& pieces) {
  const StoredTensor& stored = *find(state.tensors, tensor.dataset);
  const Shape& local = tensor.shard.local_shape;
  COPPICE_CHECK(tensor.local.is_contiguous() && tensor.local.shape() == local,
                "{}: {} to be read into {}", tensor.dataset, local, tensor.local.shape());
  if (local.numel() == 0) return 0;
  const std::int64_t rows = layout::rows_of(local), row = layout::row_elements(local);
  const DType wanted = tensor.local.dtype();
  const std::int64_t width = size_of(stored.dtype);
  const std::int64_t block = std::max<std::int64_t>(1, kNearBytes / (row * width));
  const bool converts = stored.dtype != wanted;
  std::vector<std::byte> stored_rows(
      static_cast<std::size_t>(converts ? std::min(block, rows) * row * width : 0));
  const Hdf5Rectangle rectangle = state.file.rectangle(tensor.dataset, stored.dtype, tensor.shard);
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    std::byte* target = pieces.room(tensor.local, begin * row, count * row);
    std::byte* elements = converts ? stored_rows.data() : target;
    rectangle.read(begin, count, elements);
    if (counted == Counted::kYes)
      sum += rectangle_checksum(elements, width, tensor.shard, begin, count);
    if (converts) convert_elements(stored.dtype, elements, wanted, target, count * row);
    pieces.put(tensor.stream, tensor.local, begin * row, count * row);
  }
  return sum;
}

// Nobody can take these for values: every float type reads all bits set as NaN.
void spoil(std::span<const StateTensor> tensors) {
  HostPieces pieces;
  for (const auto& tensor : tensors) {
    const std::int64_t width = size_of(tensor.local.dtype()), elements = tensor.local.numel();
    for (std::int64_t begin = 0; begin < elements; begin += kNearBytes / width) {
      const std::int64_t count = std::min(kNearBytes / width, elements - begin);
      std::memset(pieces.room(tensor.local, begin, count), 0xff,
                  static_cast<std::size_t>(count * width));
      pieces.put(tensor.stream, tensor.local, begin, count);
    }
  }
}

std::vector<JointTensor> tensors_wanted(const CheckpointFile& state,
                                        std::span<const StateTensor> wanted) {
  const std::vector<DType> any(wanted.size(), DType::kF32);
  // A rank may want nothing of a tensor that others want: what is checked is what all want.
  return state.world == nullptr ? list_tensors(wanted, any)
                                : join_tensors(*state.world, wanted, any);
}

// The pieces of a tensor that are counted, so that of each copy of the file every element is
// counted once; nothing where the ranks do not want all of it.
std::optional<std::vector<JointTensor::Piece>> counted_pieces(const CheckpointFile& state,
                                                              const JointTensor& tensor) {
  std::vector<JointTensor::Piece> counted;
  for (int copy = 0; copy < state.shared.copies; ++copy) {
    std::vector<JointTensor::Piece> pieces;
    for (const auto& piece : tensor.pieces)
      if (state.shared.copy_of_rank[static_cast<std::size_t>(piece.rank)] == copy)
        pieces.push_back(piece);
    const auto cover = cover_of(tensor.shape, pieces);
    if (!cover) return std::nullopt;
    counted.insert(counted.end(), cover->begin(), cover->end());
  }
  return counted;
}

}  // namespace

void CheckpointReader::read_stored(const StoredTensor& tensor, std::int64_t begin,
                                   std::int64_t count, std::byte* target) const {
  COPPICE_CHECK(begin >= 0 && count >= 0 && begin + count <= layout::rows_of(tensor.shape),
                "rows {} to {} of {} {}", begin, begin + count, tensor.dataset, tensor.shape);
  if (count == 0 || tensor.shape.numel() == 0) return;
  state_->file.rectangle(tensor.dataset, tensor.dtype, Shard::whole(tensor.shape))
      .read(begin, count, target);
}

void CheckpointReader::check_parameters(std::span<const ExpectedTensor> expected) const {
  std::vector<std::pair<std::string, Shape>> wanted;
  for (const auto& [name, shape] : expected) wanted.emplace_back("/parameters/" + name, shape);
  Problems problems;
  match_names(*state_, wanted, problems);
  problems.throw_if_any<DataError>();
}

void CheckpointReader::read(std::span<const StateTensor> wanted) const {
  const CheckpointFile& state = *state_;
  const auto joint = tensors_wanted(state, wanted);
  std::vector<std::pair<std::string, Shape>> names;
  for (const auto& tensor : joint) names.emplace_back(tensor.dataset, tensor.shape);
  Problems problems;
  match_names(state, names, problems);
  problems.throw_if_any<DataError>();

  std::vector<const StoredTensor*> list, compared_first;
  std::map<std::string_view, std::size_t> places;
  std::vector<Counted> counted(wanted.size(), Counted::kNo);
  std::vector<bool> left_out;
  for (const auto& tensor : joint) {
    places.emplace(tensor.dataset, list.size());
    list.push_back(find(state.tensors, tensor.dataset));
    const bool compares = list.back()->checksum.has_value() && !state.verified;
    const auto pieces = compares ? counted_pieces(state, tensor) : std::nullopt;
    left_out.push_back(!pieces.has_value());
    if (!pieces && compares) compared_first.push_back(list.back());
    for (const auto& piece : pieces.value_or(std::vector<JointTensor::Piece>()))
      if (state.world == nullptr || piece.rank == state.world->rank())
        counted[piece.place] = Counted::kYes;
  }
  state.check_fit(list);
  if (!compared_first.empty()) state.check_all(compared_first);

  JointSums sums(state, list);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (left_out[i]) sums.leave_out(i);
  HostPieces pieces;
  const auto fill = [&] {
    for (std::size_t i = 0; i < wanted.size(); ++i)
      sums.add(places.at(wanted[i].dataset),
               [&] { return read_rectangle(state, wanted[i], counted[i], pieces); });
  };
  try {
    if (state.world == nullptr)
      fill();
    else
      succeed_together(*state.world, fill);
    sums.compare();
  } catch (...) {
    spoil(wanted);
    throw;
  }
}

}  // namespace coppice
