#pragma once
// Derivatives by central differences: the oracle of the hand-written gradients, references
// included.
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace coppice::reference {

using Numbers = std::vector<double>;

/// df/dx_i of a double function, with the step eps^(1/3) max(1, |x_i|) that balances truncation
/// (h^2 f''' / 6) against rounding (eps f / h).
inline Numbers finite_differences(const std::function<double(const Numbers&)>& f, Numbers x) {
  Numbers gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    const double step =
        std::cbrt(std::numeric_limits<double>::epsilon()) * std::fmax(1.0, std::fabs(at));
    x[i] = at + step;
    const double above = f(x), width_above = x[i] - at;
    x[i] = at - step;
    const double below = f(x), width_below = at - x[i];
    x[i] = at;
    gradient[i] = (above - below) / (width_above + width_below);
  }
  return gradient;
}

/// What such a gradient may be off, relative: eps^(2/3) = 4e-11 times the ratios of f and f''' to
/// f', for which the smooth functions of these tests need three orders of magnitude at most.
inline constexpr double kFiniteDifferenceTolerance = 4e-8;

}  // namespace coppice::reference
