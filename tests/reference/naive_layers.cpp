// Formulas one element at a time; see the header for what each symbol is.
#include "reference/naive_layers.hpp"

#include <cmath>
#include <complex>
#include <cstddef>

namespace coppice::reference {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t size(const Numbers& x) { return static_cast<std::int64_t>(x.size()); }

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

Norm rms_norm(const Numbers& x, const Numbers& gamma, double epsilon) {
  Norm norm{Numbers(x.size()), {}};
  const auto n = size(gamma);
  for (std::int64_t row = 0; row < size(x) / n; ++row) {
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i) squares += std::pow(x[at(row * n + i)], 2);
    norm.rstd.push_back(std::pow(squares / static_cast<double>(n) + epsilon, -0.5));
    for (std::int64_t i = 0; i < n; ++i) {
      norm.y[at(row * n + i)] = x[at(row * n + i)] * norm.rstd.back() * gamma[at(i)];
    }
  }
  return norm;
}

// With r = (sum x^2 / n + eps)^(-1/2): dr/dx_j = -r^3 x_j / n, so
// dx_j = r gamma_j dy_j - r^3 x_j / n * sum_i dy_i gamma_i x_i.
NormGradients rms_norm_gradients(const Numbers& x, const Numbers& gamma, double epsilon,
                                 const Numbers& dy) {
  const Norm norm = rms_norm(x, gamma, epsilon);
  const auto n = size(gamma);
  NormGradients gradients{Numbers(x.size()), Numbers(gamma.size())};
  for (std::int64_t row = 0; row < size(x) / n; ++row) {
    const double r = norm.rstd[at(row)];
    double inner = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      inner += dy[at(row * n + i)] * gamma[at(i)] * x[at(row * n + i)];
    }
    for (std::int64_t j = 0; j < n; ++j) {
      const auto k = at(row * n + j);
      gradients.dx[k] =
          r * gamma[at(j)] * dy[k] - r * r * r * x[k] / static_cast<double>(n) * inner;
      gradients.dgamma[at(j)] += dy[k] * x[k] * r;
    }
  }
  return gradients;
}

// A pair is a complex number, the turn a multiplication by factor * e^(i angle).
Numbers rope(const Numbers& x, std::int64_t heads, std::int64_t width,
             const std::vector<std::int32_t>& positions, const Numbers& frequencies,
             double factor) {
  Numbers turned(x.size());
  for (std::int64_t t = 0; t < static_cast<std::int64_t>(positions.size()); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < width / 2; ++i) {
        const auto first = at((t * heads + h) * width + i);
        const auto second = first + at(width / 2);
        const auto pair = std::complex(x[first], x[second]) *
                          std::polar(factor, positions[at(t)] * frequencies[at(i)]);
        turned[first] = pair.real();
        turned[second] = pair.imag();
      }
    }
  }
  return turned;
}

Numbers swiglu(const Numbers& gate_up, std::int64_t width) {
  Numbers hidden;
  for (std::int64_t row = 0; row < size(gate_up) / (2 * width); ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      const double gate = gate_up[at(row * 2 * width + i)];
      const double up = gate_up[at(row * 2 * width + width + i)];
      hidden.push_back(gate * logistic(gate) * up);
    }
  }
  return hidden;
}

// silu(g) = g s(g), s' = s (1 - s), so silu' = s + g s (1 - s).
Numbers swiglu_gradient(const Numbers& gate_up, std::int64_t width, const Numbers& d_hidden) {
  Numbers gradient(gate_up.size());
  for (std::int64_t row = 0; row < size(gate_up) / (2 * width); ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      const auto gate_at = at(row * 2 * width + i), up_at = gate_at + at(width);
      const double gate = gate_up[gate_at], s = logistic(gate);
      const double d = d_hidden[at(row * width + i)];
      gradient[gate_at] = d * gate_up[up_at] * (s + gate * s * (1 - s));
      gradient[up_at] = d * gate * s;
    }
  }
  return gradient;
}

Numbers linear(const Numbers& x, const Numbers& w, const Numbers& bias, std::int64_t in) {
  const auto rows = size(x) / in, out = size(w) / in;
  Numbers y;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0 : bias[at(o)];
      for (std::int64_t i = 0; i < in; ++i) sum += x[at(t * in + i)] * w[at(o * in + i)];
      y.push_back(sum);
    }
  }
  return y;
}

LinearGradients linear_gradients(const Numbers& x, const Numbers& w, const Numbers& dy,
                                 std::int64_t in) {
  const auto rows = size(x) / in, out = size(w) / in;
  LinearGradients gradients{Numbers(x.size()), Numbers(w.size()), Numbers(at(out))};
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t o = 0; o < out; ++o) {
      const double d = dy[at(t * out + o)];
      gradients.dbias[at(o)] += d;
      for (std::int64_t i = 0; i < in; ++i) {
        gradients.dx[at(t * in + i)] += d * w[at(o * in + i)];
        gradients.dw[at(o * in + i)] += d * x[at(t * in + i)];
      }
    }
  }
  return gradients;
}

Numbers columns(const Numbers& x, std::int64_t width, std::int64_t begin, std::int64_t count) {
  Numbers picked;
  for (std::int64_t row = 0; row < size(x) / width; ++row) {
    for (std::int64_t i = 0; i < count; ++i) picked.push_back(x[at(row * width + begin + i)]);
  }
  return picked;
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace coppice::reference
