#pragma once
// Messages quote what files hold, and files hold anything. A problem stays one line of good UTF-8
// whatever it quotes, so that logs and scripts can read it.
#include <string>
#include <string_view>

namespace coppice {

/// `text` with control characters and bytes that are no UTF-8 written as \n, \t or \xHH.
std::string one_line(std::string_view text);

}  // namespace coppice
