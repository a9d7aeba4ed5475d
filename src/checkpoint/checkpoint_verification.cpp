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
  std::vector<std::byte> elements;
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    if (begin * row_bytes < part.begin || begin * row_bytes >= part.end) continue;
    const std::int64_t count = std::min(block, rows - begin);
    elements.resize(static_cast<std::size_t>(count * row_bytes));
    file.read_rows(tensor.dataset, tensor.dtype, whole, begin, count, elements.data());
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

void CheckpointFile::check_all(std::span<const StoredTensor* const> list,
                               Problems& problems) const {
  // For each copy: the sums, and behind them how many ranks could not read their part of a tensor.
  const std::size_t width = 2 * list.size();
  std::vector<std::uint64_t> all_sums(width * static_cast<std::size_t>(shared.copies));
  const auto sums =
      std::span(all_sums).subspan(width * static_cast<std::size_t>(shared.copy), width);
  Problems mine;
  const auto attempt = [&](std::size_t i, const auto& body) {
    try {
      body();
    } catch (const DataError& error) {
      mine.add_all(error.problems());
      sums[list.size() + i] = 1;
    }
  };
  std::vector<std::int64_t> bytes(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    attempt(i, [&] {
      file.check_fits(list[i]->dataset);
      if (list[i]->checksum) bytes[i] = bytes_of(*list[i]);
    });
  }
  const auto total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  const ByteRange part = part_of(total, shared.sharer, shared.sharers);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < list.size(); before += bytes[i++]) {
    if (bytes[i] == 0) continue;
    attempt(i, [&] {
      sums[i] = sum_of_blocks(file, *list[i], {part.begin - before, part.end - before});
    });
  }
  if (world != nullptr) sum_modulo_2_64(*world, all_sums);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (shared.sharer != 0) continue;  // one tells it for all
    const bool was_read = sums[list.size() + i] == 0;
    if (was_read && list[i]->checksum && sums[i] != *list[i]->checksum)
      mine.add("{}", no_checksum(*this, *list[i]));
  }
  if (world == nullptr) return problems.add_all(mine.lines());
  try {
    succeed_together(*world, [&] { mine.throw_if_any<DataError>(); });
  } catch (const DataError& error) {
    problems.add_all(error.problems());
  }
}

void CheckpointReader::verify(std::string_view group) {
  std::vector<const StoredTensor*> list;
  for (const auto& tensor : state_->tensors)
    if (tensor.dataset.starts_with(group)) list.push_back(&tensor);
  Problems problems;
  state_->check_all(list, problems);
  problems.throw_if_any<DataError>();
  if (group == "/") state_->verified = true;
}

}  // namespace coppice
