#include "optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace coppice {

double LrSchedule::at(std::int64_t s) const {
  COPPICE_CHECK(s >= 1, "applied updates count from 1, not {}", s);
  if (s <= warmup_steps) {
    return learning_rate * static_cast<double>(s) / static_cast<double>(warmup_steps);
  }
  if (kind == LrScheduleKind::kConstant) return learning_rate;
  const auto room = total_steps - warmup_steps;
  const double x =
      room <= 0
          ? 1.0
          : std::clamp(static_cast<double>(s - warmup_steps) / static_cast<double>(room), 0.0, 1.0);
  if (kind == LrScheduleKind::kLinear) return learning_rate * (1.0 - x);
  return learning_rate * (1.0 + std::cos(std::numbers::pi * x)) / 2.0;
}

}  // namespace coppice
