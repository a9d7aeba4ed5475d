#pragma once
// Records as TensorBoard's event files hold them: length, its checksum, bytes, their checksum. What
// the bytes mean is tensorboard_file's business.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

/// CRC-32C (Castagnoli) of the bytes.
///
/// Source    RFC 3720, appendix B.4, has examples
/// Oracle    tests/launch/tensorboard_test.cpp
std::uint32_t crc32c(std::string_view bytes);

/// `bytes` as one record: u64 length, u32 masked checksum of these eight bytes, the bytes, u32
/// masked checksum of the bytes, all little-endian. Masked: rotated right by 15, plus 0xa282ead8.
std::string framed_record(std::string_view bytes);

/// What the records of a file hold, up to the first that is not whole: a killed run's last may be
/// torn.
std::vector<std::string_view> records_of(std::string_view file);

}  // namespace coppice
