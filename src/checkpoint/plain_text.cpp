#include "checkpoint/plain_text.hpp"

#include <cstdint>

namespace coppice {

bool is_plain_text(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<std::uint8_t>(text[i++]);
    if (first < 0x20 || first == 0x7f) return false;
    if (first < 0x80) continue;
    // Length, and the smallest value that needs it: a longer spelling is not UTF-8.
    const int more = first >= 0xf0 && first < 0xf8   ? 3
                     : first >= 0xe0 && first < 0xf0 ? 2
                     : first >= 0xc0 && first < 0xe0 ? 1
                                                     : 0;
    if (more == 0 || i + static_cast<std::size_t>(more) > text.size()) return false;
    std::uint32_t value = first & (0x3fu >> more);
    for (int k = 0; k < more; ++k) {
      const auto next = static_cast<std::uint8_t>(text[i++]);
      if ((next & 0xc0u) != 0x80u) return false;
      value = value << 6 | (next & 0x3fu);
    }
    constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
    if (value < kSmallest[more] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
      return false;
    }
  }
  return true;
}

}  // namespace coppice
