// Frequencies of the rotary embeddings, all in double. transformers does the same in f32, so its
// tables differ from these by about 1e-7 relative unless it is patched.
#include "layers/rope_config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace coppice {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

void llama3(const RopeConfig& config, std::vector<double>& frequencies) {
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  const double low_wavelength = original / config.low_freq_factor;
  const double high_wavelength = original / config.high_freq_factor;
  for (double& frequency : frequencies) {
    const double wavelength = kTwoPi / frequency;
    if (wavelength > low_wavelength) {
      frequency /= config.factor;
    } else if (wavelength >= high_wavelength) {
      const double smooth = (original / wavelength - config.low_freq_factor) /
                            (config.high_freq_factor - config.low_freq_factor);
      frequency = (1.0 - smooth) * frequency / config.factor + smooth * frequency;
    }
  }
}

// The (fractional) pair that turns `rotations` times within the original length.
double yarn_pair(const RopeConfig& config, double rotations, double head_dim) {
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  return head_dim * std::log(original / (rotations * kTwoPi)) / (2.0 * std::log(config.theta));
}

void yarn(const RopeConfig& config, std::int64_t head_dim, std::vector<double>& frequencies) {
  const auto dim = static_cast<double>(head_dim);
  double low = yarn_pair(config, config.beta_fast, dim);
  double high = yarn_pair(config, config.beta_slow, dim);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;  // as transformers does against a division by zero
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / config.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

double yarn_mscale(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t head_dim) {
  COPPICE_CHECK(head_dim > 0 && head_dim % 2 == 0, "rope: head_dim = {} has no pairs", head_dim);
  COPPICE_CHECK(config.theta > 0 && config.factor > 0, "rope: theta = {}, factor = {}",
                config.theta, config.factor);
  std::vector<double> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        1.0 / std::pow(config.theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  switch (config.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& frequency : frequencies) frequency /= config.factor;
      break;
    case RopeType::kLlama3:
      COPPICE_CHECK(
          config.original_max_position_embeddings > 0 &&
              config.high_freq_factor > config.low_freq_factor && config.low_freq_factor > 0,
          "rope llama3: original_max_position_embeddings = {}, low_freq_factor = {}, "
          "high_freq_factor = {}",
          config.original_max_position_embeddings, config.low_freq_factor, config.high_freq_factor);
      llama3(config, frequencies);
      break;
    case RopeType::kYarn:
      COPPICE_CHECK(config.original_max_position_embeddings > 0 && config.beta_fast > 0 &&
                        config.beta_slow > 0 && config.theta != 1.0,
                    "rope yarn: original_max_position_embeddings = {}, beta_fast = {}, "
                    "beta_slow = {}",
                    config.original_max_position_embeddings, config.beta_fast, config.beta_slow);
      yarn(config, head_dim, frequencies);
      break;
  }
  return frequencies;
}

double rope_attention_factor(const RopeConfig& config) {
  if (config.type != RopeType::kYarn) return 1.0;
  if (config.attention_factor) return *config.attention_factor;
  // A zero counts as absent, as in transformers.
  if (config.mscale.value_or(0.0) != 0.0 && config.mscale_all_dim.value_or(0.0) != 0.0) {
    return yarn_mscale(config.factor, *config.mscale) /
           yarn_mscale(config.factor, *config.mscale_all_dim);
  }
  return yarn_mscale(config.factor, 1.0);
}

}  // namespace coppice
