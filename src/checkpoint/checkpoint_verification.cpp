// Comparing a checkpoint's values with their checksums. Of the ranks that read a file together,
// those that see the very same file each read a part of it once, and add up the sums; a rank with a
// copy of its own reads all of that, since damage to it would reach nobody else's sums.
#include <algorithm>
#include <numeric>

#include "checkpoint/checkpoint_reader_state.hpp"
#include "checkpoint/element_checksum.hpp"
#include "checkpoint/layout.hpp"
#include "core/error.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

// Bytes [begin, end) of all tensors of a list, one behind the other.
struct ByteRange {
  std::int64_t begin, end;
};

// This rank's part: equal bytes for each.
ByteRange part_of(std::int64_t bytes, int rank, int ranks) {
  const auto cut = [&](int i) {
    return bytes / ranks * i + std::min<std::int64_t>(i, bytes % ranks);
  };
  return {cut(rank), cut(rank + 1)};
}

std::int64_t bytes_of(const StoredTensor& tensor) {
  return tensor.shape.numel() * size_of(tensor.dtype);
}

// The sum of those blocks of a tensor that begin within `part`, a range of the tensor's bytes.
std::uint64_t sum_of_blocks(const Hdf5File& file, const StoredTensor& tensor, ByteRange part) {
  const Shard whole = Shard::whole(tensor.shape);
  const std::int64_t rows = tensor.shape.numel() == 0 ? 0 : layout::rows_of(tensor.shape);
  const std::int64_t block = layout::block_rows(tensor.shape, tensor.dtype);
  const std::int64_t row_bytes = layout::row_elements(tensor.shape) * size_of(tensor.dtype);
  const Hdf5Rectangle rectangle = file.rectangle(tensor.dataset, tensor.dtype, whole);
  std::vector<std::byte> elements;
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    if (begin * row_bytes < part.begin || begin * row_bytes >= part.end) continue;
    const std::int64_t count = std::min(block, rows - begin);
    elements.resize(static_cast<std::size_t>(count * row_bytes));
    rectangle.read(begin, count, elements.data());
    sum += rectangle_checksum(elements.data(), size_of(tensor.dtype), whole, begin, count);
  }
  return sum;
}

std::string no_checksum(const CheckpointFile& state, const StoredTensor& tensor) {
  const bool copies = state.shared.copies > 1;
  return fmt::format("{}: {} does not have its checksum (the file{} is damaged).",
                     state.path.string(), tensor.dataset,
                     copies ? fmt::format(" that rank {} sees", state.world->rank()) : "");
}

}  // namespace

std::uint64_t CheckpointFile::read_through(const StoredTensor& tensor) const {
  return sum_of_blocks(file, tensor, {0, bytes_of(tensor)});
}

void CheckpointFile::check_values(const StoredTensor& tensor, Problems& problems) const {
  if (tensor.checksum && read_through(tensor) != *tensor.checksum)
    problems.add("{}", no_checksum(*this, tensor));
}

void CheckpointFile::check_fit(std::span<const StoredTensor* const> list) const {
  JointSums fits(*this, list);
  for (std::size_t i = 0; i < list.size(); ++i) {
    fits.leave_out(i);
    fits.add(i, [&] {
      file.check_fits(list[i]->dataset);
      return std::uint64_t{0};
    });
  }
  fits.compare();
}

void CheckpointFile::check_all(std::span<const StoredTensor* const> list) const {
  JointSums sums(*this, list);
  std::vector<std::int64_t> bytes(list.size());
  for (std::size_t i = 0; i < list.size(); ++i)
    sums.add(i, [&] {
      file.check_fits(list[i]->dataset);
      if (list[i]->checksum) bytes[i] = bytes_of(*list[i]);
      return std::uint64_t{0};
    });
  const auto total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  const ByteRange part = part_of(total, shared.sharer, shared.sharers);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < list.size(); before += bytes[i++]) {
    if (bytes[i] == 0) continue;
    sums.add(i, [&] {
      return sum_of_blocks(file, *list[i], {part.begin - before, part.end - before});
    });
  }
  sums.compare();
}

JointSums::JointSums(const CheckpointFile& file, std::span<const StoredTensor* const> list)
    : file_(file),
      list_(list),
      sums_(2 * list.size() * static_cast<std::size_t>(file.shared.copies)),
      left_out_(list.size()) {}

// This rank's copy.
std::span<std::uint64_t> JointSums::own() {
  const std::size_t width = 2 * list_.size();
  return std::span(sums_).subspan(width * static_cast<std::size_t>(file_.shared.copy), width);
}

void JointSums::add(std::size_t i, const std::function<std::uint64_t()>& part) {
  try {
    own()[i] += part();
  } catch (const DataError& error) {
    mine_.add_all(error.problems());
    own()[list_.size() + i] = 1;
  }
}

void JointSums::compare() {
  Communicator* const world = file_.world;
  if (world != nullptr) sum_modulo_2_64(*world, sums_);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (file_.shared.sharer != 0 || left_out_[i]) continue;  // one tells it for all
    const bool was_read = own()[list_.size() + i] == 0;
    if (was_read && list_[i]->checksum && own()[i] != *list_[i]->checksum)
      mine_.add("{}", no_checksum(file_, *list_[i]));
  }
  if (world == nullptr) return mine_.throw_if_any<DamagedCheckpoint>();
  try {
    succeed_together(*world, [&] { mine_.throw_if_any<DataError>(); });
  } catch (const DataError& error) {
    throw DamagedCheckpoint(error.problems());
  }
}

void CheckpointReader::verify(std::string_view group) {
  std::vector<const StoredTensor*> list;
  for (const auto& tensor : state_->tensors)
    if (tensor.dataset.starts_with(group)) list.push_back(&tensor);
  state_->check_all(list);
  if (group == "/") state_->verified = true;
}

}  // namespace coppice
