#pragma once
// Whether a name from a file may be shown to a user as it is.
#include <string_view>

namespace coppice {

/// True for valid UTF-8 without control characters.
bool is_plain_text(std::string_view text);

}  // namespace coppice
