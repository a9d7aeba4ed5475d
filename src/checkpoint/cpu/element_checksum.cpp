// Highway compiles the sum once per kind of CPU and chooses at run time: a save or a load would
// otherwise spend a fifth of its time here.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checkpoint/cpu/element_checksum.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include <hwy/highway.h>

#include <cstring>

#include "checkpoint/element_checksum.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::ScalableTag<std::uint64_t>;

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;

HWY_INLINE hn::Vec<Lanes> mixed(hn::Vec<Lanes> z) {
  const Lanes d;
  z = hn::Mul(hn::Xor(z, hn::ShiftRight<30>(z)), hn::Set(d, 0xBF58476D1CE4E5B9u));
  z = hn::Mul(hn::Xor(z, hn::ShiftRight<27>(z)), hn::Set(d, 0x94D049BB133111EBu));
  return hn::Xor(z, hn::ShiftRight<31>(z));
}

/// The bits of one vector's elements.
template <class Bits>
HWY_INLINE hn::Vec<Lanes> widened(const std::byte* elements) {
  const Lanes d;
  if constexpr (sizeof(Bits) == 8) {
    return hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(elements));
  } else {
    const hn::Rebind<std::uint32_t, Lanes> narrow;
    if constexpr (sizeof(Bits) == 4) {
      return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const std::uint32_t*>(elements)));
    } else {
      const hn::Rebind<Bits, Lanes> narrower;
      return hn::PromoteTo(
          d, hn::PromoteTo(narrow, hn::LoadU(narrower, reinterpret_cast<const Bits*>(elements))));
    }
  }
}

template <class Bits>
std::uint64_t sum_of(const std::byte* elements, std::int64_t first_index, std::int64_t count) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto step = hn::Set(d, kStep * static_cast<std::uint64_t>(lanes));
  const auto first = (static_cast<std::uint64_t>(first_index) + 1) * kStep;
  auto offset = hn::Add(hn::Set(d, first), hn::Mul(hn::Iota(d, 0), hn::Set(d, kStep)));
  auto sums = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes, offset = hn::Add(offset, step)) {
    const auto bits = widened<Bits>(elements + i * static_cast<std::int64_t>(sizeof(Bits)));
    sums = hn::Add(sums, mixed(hn::Add(bits, offset)));
  }
  // By hand: the library's sum of lanes is one of signed numbers on some CPUs, and this one wraps.
  std::uint64_t lane_sums[HWY_MAX_BYTES / sizeof(std::uint64_t)];
  hn::StoreU(sums, d, lane_sums);
  std::uint64_t sum = 0;
  for (std::int64_t lane = 0; lane < lanes; ++lane) sum += lane_sums[lane];
  for (; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, elements + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    sum += hn::GetLane(mixed(hn::Set(d, bits + first + static_cast<std::uint64_t>(i) * kStep)));
  }
  return sum;
}

}  // namespace

// HWY_EXPORT takes plain functions.
std::uint64_t ElementChecksum(const std::byte* elements, std::int64_t element_bytes,
                              std::int64_t first_index, std::int64_t count) {
  switch (element_bytes) {
    case 1:
      return sum_of<std::uint8_t>(elements, first_index, count);
    case 2:
      return sum_of<std::uint16_t>(elements, first_index, count);
    case 4:
      return sum_of<std::uint32_t>(elements, first_index, count);
    default:
      return sum_of<std::uint64_t>(elements, first_index, count);
  }
}

}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {

HWY_EXPORT(ElementChecksum);
std::uint64_t element_checksum(const std::byte* elements, std::int64_t element_bytes,
                               std::int64_t first_index, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(ElementChecksum)(elements, element_bytes, first_index, count);
}

}  // namespace coppice::cpu
#endif  // HWY_ONCE
