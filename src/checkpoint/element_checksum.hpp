#pragma once
// The checksum of a dataset: a sum over its elements, so that any number of ranks can compute it
// from the rectangles they hold, in any order, and add up their parts.
#include <cstddef>
#include <cstdint>

#include "parallel/shard.hpp"

namespace coppice {

/// Sum mod 2^64 of hash(bits of the element, its index) over `count` elements of `element_bytes`
/// (1, 2, 4 or 8) bytes, the first of which has index `first_index`.
///
///   z = bits + (index + 1) 0x9E3779B97F4A7C15      z ^= z >> 30   z *= 0xBF58476D1CE4E5B9
///   z ^= z >> 27   z *= 0x94D049BB133111EB   z ^= z >> 31         (all mod 2^64)
///
/// Every change within one element changes the sum, since the hash of an index is one to one.
///
/// Source    the finalizer of SplitMix64: Steele et al., "Fast splittable pseudorandom number
///           generators", OOPSLA 2014
/// Oracle    tests/checkpoint/element_checksum_test.cpp: the published sequence of SplitMix64
std::uint64_t element_checksum(const std::byte* elements, std::int64_t element_bytes,
                               std::int64_t first_index, std::int64_t count);

/// The same for rows [row_begin, row_begin + row_count) (axis 0) of a rectangle of a dataset:
/// `elements` begins with the first of these rows, contiguous; an element's index is its row-major
/// index in the global shape.
std::uint64_t rectangle_checksum(const std::byte* elements, std::int64_t element_bytes,
                                 const Shard& shard, std::int64_t row_begin,
                                 std::int64_t row_count);

namespace cpu {
std::uint64_t element_checksum(const std::byte* elements, std::int64_t element_bytes,
                               std::int64_t first_index, std::int64_t count);
}

}  // namespace coppice
