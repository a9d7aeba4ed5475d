#include "launch/tensorboard_record.hpp"

#include <bit>
#include <cstddef>

namespace coppice {
namespace {

constexpr std::size_t kLengthBytes = 8, kChecksumBytes = 4;

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class T>
void put(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    text += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

template <class T>
T get(std::string_view text) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;)
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(text[i]));
  return value;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  // Bit by bit: a step is some 3 KB, and this takes 0.1 ms of it.
  constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // reflected
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
  }
  return ~crc;
}

std::string framed_record(std::string_view bytes) {
  std::string record;
  put(record, std::uint64_t{bytes.size()});
  put(record, masked(crc32c(record)));
  record += bytes;
  put(record, masked(crc32c(bytes)));
  return record;
}

std::vector<std::string_view> records_of(std::string_view file) {
  std::vector<std::string_view> records;
  while (file.size() >= kLengthBytes + 2 * kChecksumBytes) {
    const auto length = get<std::uint64_t>(file);
    if (get<std::uint32_t>(file.substr(kLengthBytes)) !=
            masked(crc32c(file.substr(0, kLengthBytes))) ||
        length > file.size() - kLengthBytes - 2 * kChecksumBytes)
      break;
    const std::string_view bytes = file.substr(kLengthBytes + kChecksumBytes, length);
    file.remove_prefix(kLengthBytes + kChecksumBytes + length);
    if (get<std::uint32_t>(file) != masked(crc32c(bytes))) break;
    file.remove_prefix(kChecksumBytes);
    records.push_back(bytes);
  }
  return records;
}

}  // namespace coppice
