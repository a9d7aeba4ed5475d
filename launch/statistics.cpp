#include "launch/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace coppice {

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::optional<double> relative_difference(std::optional<double> a, std::optional<double> b,
                                          double least) {
  if (!a || !b) return std::nullopt;
  const double scale = std::max({std::abs(*a), std::abs(*b), least});
  return scale == 0 ? 0 : std::abs(*a - *b) / scale;
}

std::optional<double> quotient(std::optional<double> a, std::optional<double> b) {
  if (!a || !b || *b == 0) return std::nullopt;
  return *a / *b;
}

}  // namespace coppice
