#include "checkpoint/joint_tensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "core/error.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

using Extents = std::array<std::int64_t, Shape::kMaxRank>;

// One rectangle as it travels; the bytes of the dataset's name follow it.
struct Record {
  std::int64_t name_size, dtype, axes;
  Extents global, offset, local;
};

Extents extents_of(const Shape& shape) {
  Extents extents{};
  std::ranges::copy(shape.extents(), extents.begin());
  return extents;
}

Shape shape_of(const Extents& extents, std::int64_t axes) {
  return Shape(std::span(extents.data(), static_cast<std::size_t>(axes)));
}

std::string packed(std::span<const StateTensor> tensors, std::span<const DType> dtypes) {
  std::string text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Shard& shard = tensors[i].shard;
    const int axes = shard.global_shape.rank();
    COPPICE_CHECK(shard.global_offset.rank() == axes && shard.local_shape.rank() == axes,
                  "{}: rectangle {} at {} of {}", tensors[i].dataset, shard.local_shape,
                  shard.global_offset, shard.global_shape);
    const Record record{std::ssize(tensors[i].dataset),
                        static_cast<std::int64_t>(dtypes[i]),
                        axes,
                        extents_of(shard.global_shape),
                        extents_of(shard.global_offset),
                        extents_of(shard.local_shape)};
    text.append(reinterpret_cast<const char*>(&record), sizeof(record));
    text += tensors[i].dataset;
  }
  return text;
}

bool overlap(const Shard& a, const Shard& b) {
  for (int axis = 0; axis < a.global_shape.rank(); ++axis) {
    const std::int64_t end_a = a.global_offset[axis] + a.local_shape[axis];
    const std::int64_t end_b = b.global_offset[axis] + b.local_shape[axis];
    if (end_a <= b.global_offset[axis] || end_b <= a.global_offset[axis]) return false;
  }
  return true;
}

bool is_inside(const Shard& shard) {
  for (int axis = 0; axis < shard.global_shape.rank(); ++axis) {
    const std::int64_t begin = shard.global_offset[axis];
    if (begin < 0 || begin + shard.local_shape[axis] > shard.global_shape[axis]) return false;
  }
  return true;
}

// What the texts of all ranks say, in rank order.
std::vector<JointTensor> unpacked(const std::vector<std::string>& texts) {
  std::vector<JointTensor> joint;
  std::map<std::string, std::size_t> places;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string& all = texts[rank];
    for (std::size_t at = 0, place = 0; at < all.size(); ++place) {
      Record record;
      std::memcpy(&record, all.data() + at, sizeof(record));
      const auto name_size = static_cast<std::size_t>(record.name_size);
      const std::string name = all.substr(at + sizeof(record), name_size);
      at += sizeof(record) + name_size;
      const Shard shard{shape_of(record.global, record.axes), shape_of(record.offset, record.axes),
                        shape_of(record.local, record.axes)};
      const auto dtype = static_cast<DType>(record.dtype);
      const auto [known, is_new] = places.try_emplace(name, joint.size());
      if (is_new) joint.push_back({name, dtype, shard.global_shape, {}});
      JointTensor& tensor = joint[known->second];
      COPPICE_CHECK(tensor.dtype == dtype && tensor.shape == shard.global_shape,
                    "{}: rank {} holds {} of {}, a rank before it {} of {}", name, rank,
                    name_of(dtype), shard.global_shape, name_of(tensor.dtype), tensor.shape);
      if (shard.local_shape.numel() > 0)
        tensor.pieces.push_back({static_cast<int>(rank), place, shard});
    }
  }
  return joint;
}

}  // namespace

std::vector<JointTensor> join_tensors(Communicator& world, std::span<const StateTensor> mine,
                                      std::span<const DType> dtypes) {
  std::string text;
  succeed_together(world, [&] { text = packed(mine, dtypes); });
  return unpacked(all_gather_texts(world, text));
}

std::vector<JointTensor> list_tensors(std::span<const StateTensor> all,
                                      std::span<const DType> dtypes) {
  return unpacked({packed(all, dtypes)});
}

std::optional<std::vector<JointTensor::Piece>> cover_of(
    const Shape& shape, std::span<const JointTensor::Piece> pieces) {
  std::vector<JointTensor::Piece> firsts;
  std::int64_t elements = 0;
  for (const auto& piece : pieces) {
    const auto is_like = [&](const auto& other) { return other.shard == piece.shard; };
    if (std::ranges::any_of(firsts, is_like)) continue;
    const auto meets = [&](const auto& other) { return overlap(other.shard, piece.shard); };
    if (!is_inside(piece.shard) || std::ranges::any_of(firsts, meets)) return std::nullopt;
    elements += piece.shard.local_shape.numel();
    firsts.push_back(piece);
  }
  if (elements != shape.numel()) return std::nullopt;
  return firsts;
}

void check_cover(const JointTensor& tensor) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const auto& piece = tensor.pieces[i];
    elements += piece.shard.local_shape.numel();
    COPPICE_CHECK(is_inside(piece.shard), "{}: rank {} holds {} at {} of {}", tensor.dataset,
                  piece.rank, piece.shard.local_shape, piece.shard.global_offset, tensor.shape);
    for (std::size_t j = 0; j < i; ++j) {
      const auto& other = tensor.pieces[j];
      COPPICE_CHECK(!overlap(piece.shard, other.shard),
                    "{}: rank {} ({} at {}) and rank {} ({} at {}) would write the same elements",
                    tensor.dataset, other.rank, other.shard.local_shape, other.shard.global_offset,
                    piece.rank, piece.shard.local_shape, piece.shard.global_offset);
    }
  }
  COPPICE_CHECK(elements == tensor.shape.numel(), "{}: {} of {} elements are written by any rank",
                tensor.dataset, elements, tensor.shape.numel());
}

}  // namespace coppice
