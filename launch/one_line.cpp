#include "launch/one_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace coppice {
namespace {

// Bytes of the UTF-8 character that `text` begins with (RFC 3629: no surrogates, nothing overlong,
// nothing above U+10FFFF); 0 where it begins with none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xC2 && lead <= 0xDF   ? 2
                           : lead >= 0xE0 && lead <= 0xEF ? 3
                           : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                          : 0;
  if (size == 0 || text.size() < size) return 0;
  const unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < size; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return size;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t size = character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (first == '\n')
      line += "\\n";
    else if (first == '\t')
      line += "\\t";
    else if (size == 0 || first < 0x20 || first == 0x7F)
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", first);
    else
      line += text.substr(0, size);
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return line;
}

}  // namespace coppice
