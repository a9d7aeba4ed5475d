#include "rl/parameter_check.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "checkpoint/element_checksum.hpp"
#include "core/host_pieces.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

struct PartHash {
  const ParameterPart* part;
  std::int64_t hash;
};

// A device's values come to the host in pieces of so many elements.
constexpr std::int64_t kPiece = std::int64_t{1} << 20;

std::uint64_t hash_of(Stream& stream, HostPieces& pieces, ConstTensorView values) {
  const std::int64_t width = size_of(values.dtype()), elements = values.numel();
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < elements; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, elements - begin);
    sum += element_checksum(pieces.fetch(&stream, values, begin, count), width, begin, count);
  }
  return sum;
}

std::vector<PartHash> hashes_of(Stream& stream, std::span<Parameter* const> parameters) {
  HostPieces pieces;
  std::vector<PartHash> hashes;
  for (Parameter* parameter : parameters) {
    for (const ParameterPart& part : parameter->parts) {
      const std::uint64_t hash = hash_of(stream, pieces, rows_of(part, parameter->value));
      hashes.push_back({&part, static_cast<std::int64_t>(hash)});
    }
  }
  return hashes;
}

// "0, 2 than on ranks 1, 3"
std::string listed(const std::vector<std::vector<int>>& sides) {
  std::vector<std::string> texts;
  for (const auto& ranks : sides) texts.push_back(fmt::format("{}", fmt::join(ranks, ", ")));
  return fmt::format("{}", fmt::join(texts, " than on ranks "));
}

// The first part that not all ranks of `comm` hold alike, as a sentence; empty where there is none.
std::string difference(ExecContext& ctx, Communicator& comm, const std::vector<PartHash>& hashes,
                       const std::function<int(int)>& world_rank) {
  if (comm.size() == 1 || hashes.empty()) return {};
  const auto count = std::ssize(hashes);
  std::vector<std::int64_t> mine, all(static_cast<std::size_t>(count * comm.size()));
  for (const PartHash& entry : hashes) mine.push_back(entry.hash);
  comm.all_gather(ctx.stream, host_view(mine.data(), {1, count}),
                  host_view(all.data(), {comm.size(), count}));
  for (std::int64_t i = 0; i < count; ++i) {
    std::map<std::int64_t, std::vector<int>> holders;
    for (int rank = 0; rank < comm.size(); ++rank)
      holders[all[static_cast<std::size_t>(rank * count + i)]].push_back(world_rank(rank));
    if (holders.size() == 1) continue;
    std::vector<std::vector<int>> sides;
    for (const auto& [hash, ranks] : holders) sides.push_back(ranks);
    std::ranges::sort(sides);
    return fmt::format(
        "{} has other values on ranks {} (they must be the same; every further step would be "
        "lost). Look for a failing machine, and go on from a checkpoint.",
        hashes[static_cast<std::size_t>(i)].part->name, listed(sides));
  }
  return {};
}

}  // namespace

void check_identical_parameters(ExecContext& ctx, ProcessGrid& grid,
                                std::span<Parameter* const> parameters) {
  if (grid.world().size() == 1) return;
  const std::vector<PartHash> all = hashes_of(ctx.stream, parameters);
  std::vector<PartHash> whole, shared;
  for (const PartHash& entry : all) {
    if (entry.part->reduction == ReductionGroup::kSharedKeyValueHead)
      shared.push_back(entry);
    else if (entry.part->shard.local_shape == entry.part->shard.global_shape)
      whole.push_back(entry);
  }
  const int tp = grid.sizes().tensor, me = grid.world().rank(), tp_rank = me % tp;
  const int sharers = grid.shared_key_value().size();
  const std::string found[] = {
      difference(ctx, grid.replicas(), all, [&](int rank) { return rank * tp + tp_rank; }),
      difference(ctx, grid.tensor(), whole, [&](int rank) { return me - tp_rank + rank; }),
      difference(ctx, grid.shared_key_value(), shared,
                 [&](int rank) { return me / sharers * sharers + rank; })};
  succeed_together(grid.world(), [&] {
    for (const std::string& text : found)
      if (!text.empty()) throw Error(text);
  });
}

}  // namespace coppice
