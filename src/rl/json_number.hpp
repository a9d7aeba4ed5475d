#pragma once
// JSON's grammar of numbers, for telling a number that is too large for a double (good JSON, but
// infinite here) from text that is no number at all, such as NaN.
#include <string_view>

namespace coppice {

/// True if all of `text` is one number as RFC 8259, section 6, writes it.
bool is_json_number(std::string_view text);

}  // namespace coppice
