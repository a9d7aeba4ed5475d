#include "checkpoint/hf_weights.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/layout.hpp"
#include "checkpoint/rectangle_bytes.hpp"
#include "core/convert.hpp"
#include "core/host_pieces.hpp"

namespace coppice {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

bool bit_equal(const SafetensorsModel::Source& a, const SafetensorsModel::Source& b) {
  if (a.entry->dtype != b.entry->dtype || a.entry->shape != b.entry->shape) return false;
  std::vector<std::byte> left(layout::kBlockBytes), right(layout::kBlockBytes);
  for (std::int64_t begin = 0; begin < a.entry->bytes; begin += layout::kBlockBytes) {
    const auto count =
        static_cast<std::size_t>(std::min(layout::kBlockBytes, a.entry->bytes - begin));
    a.read(begin, std::span(left).first(count));
    b.read(begin, std::span(right).first(count));
    if (std::memcmp(left.data(), right.data(), count) != 0) return false;
  }
  return true;
}

// True for a tensor that the model does not need and that may be there all the same.
bool passed_over(const SafetensorsModel& model, const std::string& name, TiedHead tied,
                 const std::string& place, Problems& problems) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  if (name != kHead || tied == TiedHead::kNo) return false;
  const auto embedding = model.tensors().find(kEmbedding);
  if (embedding != model.tensors().end() &&
      !bit_equal(model.tensors().at(name), embedding->second)) {
    problems.add(
        "{}: {} is not {}, though tie_word_embeddings is true (one of them would be lost). Remove "
        "it, or set tie_word_embeddings to false.",
        place, kHead, kEmbedding);
  }
  return true;
}

// One rectangle, converted block by block where the file's type is another.
void read_rectangle(const HfWeight& weight, const StateTensor& tensor, HostPieces& pieces) {
  const Shard& shard = tensor.shard;
  const Shape& local = shard.local_shape;
  COPPICE_CHECK(shard.global_shape == weight.shape && tensor.local.is_contiguous() &&
                    tensor.local.shape() == local,
                "{}: {} of {} to be read into {}, from {}", tensor.dataset, local,
                shard.global_shape, tensor.local.shape(), weight.shape);
  if (local.numel() == 0) return;
  const std::int64_t rows = layout::rows_of(local), row = layout::row_elements(local);
  const std::int64_t width = size_of(weight.dtype);
  const DType wanted = tensor.local.dtype();
  const bool converts = weight.dtype != wanted;
  const bool in_place = !converts && tensor.local.device().kind == DeviceKind::kCpu;
  const std::int64_t block = in_place ? rows : layout::block_rows(local, weight.dtype);
  std::vector<std::byte> stored(
      static_cast<std::size_t>(converts ? std::min(block, rows) * row * width : 0));
  RectangleBytes bytes(shard, width, [&](std::int64_t offset, std::span<std::byte> target) {
    weight.source.read(offset, target);
  });
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t count = std::min(block, rows - begin);
    std::byte* target = pieces.room(tensor.local, begin * row, count * row);
    bytes.read(begin, count, converts ? stored.data() : target);
    if (converts) convert_elements(weight.dtype, stored.data(), wanted, target, count * row);
    pieces.put(tensor.stream, tensor.local, begin * row, count * row);
  }
}

}  // namespace

void read_hf_weights(std::span<const HfWeight> weights, std::span<const StateTensor> wanted) {
  std::map<std::string, const HfWeight*> by_dataset;
  for (const auto& weight : weights) by_dataset["/parameters/" + weight.name] = &weight;
  HostPieces pieces;
  for (const auto& tensor : wanted) {
    const auto found = by_dataset.find(tensor.dataset);
    COPPICE_CHECK(found != by_dataset.end(), "{} is none of the weights", tensor.dataset);
    read_rectangle(*found->second, tensor, pieces);
  }
}

std::vector<HfWeight> match_hf_weights(const SafetensorsModel& model,
                                       std::span<const ExpectedTensor> expected, TiedHead tied,
                                       const std::string& place, Problems& problems) {
  std::vector<HfWeight> weights;
  std::set<std::string> names;
  for (const auto& [name, shape] : expected) {
    names.insert(name);
    const auto found = model.tensors().find(name);
    if (found == model.tensors().end()) {
      problems.add("{}: tensor \"{}\" is missing (its shape would be {}).", place, name, shape);
      continue;
    }
    const SafetensorsEntry& entry = *found->second.entry;
    const auto dtype = dtype_from_safetensors(entry.dtype);
    if (!dtype) {
      problems.add("{}: tensor \"{}\" has type {} (weights are F32, F64, BF16 or F16).", place,
                   name, entry.dtype);
    }
    if (!std::ranges::equal(entry.shape, shape.extents())) {
      problems.add("{}: tensor \"{}\" has shape {}; config.json asks for {}.", place, name,
                   entry.shape_string(), shape);
    }
    if (dtype) weights.push_back({name, *dtype, shape, found->second});
  }
  for (const auto& [name, source] : model.tensors()) {
    if (!names.contains(name) && !passed_over(model, name, tied, place, problems)) {
      problems.add("{}: tensor \"{}\" is not part of the model that config.json describes.", place,
                   name);
    }
  }
  return weights;
}

}  // namespace coppice
