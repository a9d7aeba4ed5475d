#pragma once
// Where a step's groups come from. The trainer takes groups and knows no file; a source says where
// it stands in a way that brings a resumed run to the same groups.
#include <cstdint>
#include <optional>
#include <vector>

#include "rl/rollouts.hpp"

namespace coppice {

/// Where a source stands: everything that decides what it gives next, beside what it was made of.
struct SourcePosition {
  std::int64_t epoch = 0;
  std::int64_t taken = 0;  ///< groups already given in this epoch

  friend bool operator==(const SourcePosition&, const SourcePosition&) = default;
};

/// a x b, or the largest number where that is beyond it: counts that no run reaches.
std::int64_t saturating_product(std::int64_t a, std::int64_t b);

class GroupSource {
 public:
  virtual ~GroupSource() = default;
  /// The next groups, at most `count`; fewer at the end of an epoch, none when all is given.
  virtual std::vector<Group> take(std::int64_t count) = 0;
  virtual SourcePosition position() const = 0;
  virtual void set_position(const SourcePosition& position) = 0;
  /// How many calls of take(count) give groups, from the start; nothing where that is unknown.
  virtual std::optional<std::int64_t> batches(std::int64_t count) const = 0;
};

/// Recorded groups, `epochs` times over, in file order or shuffled anew for every epoch. A step
/// does not reach into the next epoch; the last, smaller one is kept.
///
/// Repeats   the order of epoch e depends on the seed and e alone
class RolloutsSource : public GroupSource {
 public:
  RolloutsSource(std::vector<Group> groups, std::int64_t epochs, bool shuffle, std::uint64_t seed);

  std::vector<Group> take(std::int64_t count) override;
  SourcePosition position() const override { return position_; }
  void set_position(const SourcePosition& position) override;
  std::optional<std::int64_t> batches(std::int64_t count) const override;

  const std::vector<Group>& groups() const { return groups_; }

 private:
  void enter_epoch(std::int64_t epoch);

  std::vector<Group> groups_;
  std::int64_t epochs_;
  bool shuffle_;
  std::uint64_t seed_;
  SourcePosition position_;
  std::vector<std::size_t> order_;
};

}  // namespace coppice
