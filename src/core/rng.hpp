#pragma once
// Counter-based random numbers (Philox 4x32-10): a value is a function of a key and of what is
// drawn, never of who draws it or in which order, so results do not depend on ranks or threads.
#include <array>
#include <cstdint>
#include <string_view>

namespace coppice {

/// One block of four random words.
///
/// Source    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
/// Oracle    tests/core/rng_test.cpp, the published known-answer vectors
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);

/// Random values of one named thing: element i of stream `name` under `seed`.
class RandomStream {
 public:
  /// `name` says what is drawn, e.g. "init/model.norm.weight" or "shuffle/epoch 3".
  RandomStream(std::uint64_t seed, std::string_view name);

  /// Uniform 64 bits.
  std::uint64_t bits(std::uint64_t index) const;
  /// Uniform in (0, 1), never an end.
  double uniform(std::uint64_t index) const;
  /// Standard normal (Box-Muller in double).
  double normal(std::uint64_t index) const;
  /// Uniform in [0, bound), without bias; bound > 0.
  std::uint64_t below(std::uint64_t bound, std::uint64_t index) const;

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t index, std::uint32_t round) const;
  std::array<std::uint32_t, 2> key_;
  std::uint32_t stream_;
};

}  // namespace coppice
