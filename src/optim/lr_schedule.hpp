#pragma once
// The learning rate as a function of the applied update, and of nothing else: skipped steps do not
// move it, and a resumed run needs only its count of applied updates.
#include <cstdint>

namespace coppice {

enum class LrScheduleKind { kConstant, kCosine, kLinear };

struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  double learning_rate = 1e-6;
  std::int64_t warmup_steps = 0;
  /// Where the decay ends; of no effect on kConstant.
  std::int64_t total_steps = 0;

  /// The rate of applied update s = 1, 2, ...: learning_rate s / warmup_steps during the warm-up;
  /// then, with x = (s - warmup_steps) / (total_steps - warmup_steps) held to [0, 1], constant,
  /// learning_rate (1 + cos(pi x)) / 2, or learning_rate (1 - x). Where total_steps leaves no room
  /// behind the warm-up, x is 1.
  ///
  /// Errors    ContractError if s < 1
  double at(std::int64_t s) const;
};

}  // namespace coppice
