#include "rl/group_source.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/rng.hpp"

namespace coppice {

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

RolloutsSource::RolloutsSource(std::vector<Group> groups, std::int64_t epochs, bool shuffle,
                               std::uint64_t seed)
    : groups_(std::move(groups)), epochs_(epochs), shuffle_(shuffle), seed_(seed) {
  COPPICE_CHECK(!groups_.empty(), "a source without groups");
  enter_epoch(0);
}

void RolloutsSource::enter_epoch(std::int64_t epoch) {
  position_ = {epoch, 0};
  order_.resize(groups_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  if (!shuffle_) return;
  const RandomStream random(seed_, fmt::format("shuffle/epoch {}", epoch));
  for (std::size_t i = order_.size() - 1; i > 0; --i)  // Fisher-Yates
    std::swap(order_[i], order_[random.below(i + 1, i)]);
}

std::vector<Group> RolloutsSource::take(std::int64_t count) {
  COPPICE_CHECK(count > 0, "{} groups asked for", count);
  const auto size = std::ssize(groups_);
  if (position_.epoch < epochs_ && position_.taken == size) enter_epoch(position_.epoch + 1);
  if (position_.epoch >= epochs_) return {};
  std::vector<Group> taken;
  for (; position_.taken < size && std::ssize(taken) < count; ++position_.taken)
    taken.push_back(groups_[order_[static_cast<std::size_t>(position_.taken)]]);
  return taken;
}

void RolloutsSource::set_position(const SourcePosition& position) {
  COPPICE_CHECK(position.epoch >= 0 && position.taken >= 0, "epoch {}, {} groups taken",
                position.epoch, position.taken);
  if (position.taken > std::ssize(groups_))
    throw DataError(
        {fmt::format("the run stands behind group {} of an epoch, but the rollouts "
                     "hold {} (they are not those it began with). Give it the same "
                     "rollouts, or start anew in another run_dir.",
                     position.taken, groups_.size())});
  enter_epoch(position.epoch);
  position_.taken = position.taken;
}

std::optional<std::int64_t> RolloutsSource::batches(std::int64_t count) const {
  COPPICE_CHECK(count > 0, "batches of {} groups", count);
  return saturating_product(epochs_, (std::ssize(groups_) - 1) / count + 1);
}

}  // namespace coppice
