#include "core/rng.hpp"

#include <xxhash.h>

#include <cmath>
#include <numbers>

namespace coppice {
namespace {

constexpr double kTwoPow53 = 9007199254740992.0;

// (0, 1): the middle of one of 2^53 equal intervals.
double open_unit(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) / kTwoPow53; }

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c,
                                    std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

RandomStream::RandomStream(std::uint64_t seed, std::string_view name) {
  // The name enters through both the key and the counter: 96 bits tell streams apart.
  const std::uint64_t hash = XXH3_64bits_withSeed(name.data(), name.size(), seed);
  key_ = {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)};
  stream_ = static_cast<std::uint32_t>(XXH64(name.data(), name.size(), ~seed));
}

std::array<std::uint32_t, 4> RandomStream::block(std::uint64_t index, std::uint32_t round) const {
  return philox(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), round, stream_},
      key_);
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const auto words = block(index, 0);
  return words[0] | std::uint64_t{words[1]} << 32;
}

double RandomStream::uniform(std::uint64_t index) const { return open_unit(bits(index)); }

double RandomStream::normal(std::uint64_t index) const {
  const auto w = block(index, 0);
  const double u = open_unit(w[0] | std::uint64_t{w[1]} << 32);
  const double v = open_unit(w[2] | std::uint64_t{w[3]} << 32);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::uint64_t RandomStream::below(std::uint64_t bound, std::uint64_t index) const {
  // Values under 2^64 mod bound would favour the small results; they are drawn again.
  const std::uint64_t unfair = (0 - bound) % bound;
  for (std::uint32_t round = 0;; ++round) {
    const auto words = block(index, round);
    const std::uint64_t value = words[0] | std::uint64_t{words[1]} << 32;
    if (value >= unfair) return value % bound;
  }
}

}  // namespace coppice
