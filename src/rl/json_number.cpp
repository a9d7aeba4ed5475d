#include "rl/json_number.hpp"

namespace coppice {

bool is_json_number(std::string_view text) {
  std::size_t i = 0;
  const auto skip = [&](std::string_view any_of) {
    const bool there = i < text.size() && any_of.find(text[i]) != any_of.npos;
    i += there;
    return there;
  };
  const auto digits = [&] {
    const std::size_t begin = i;
    while (skip("0123456789")) {
    }
    return i - begin;
  };
  skip("-");
  const std::size_t first = i;
  const std::size_t count = digits();
  if (count == 0 || (count > 1 && text[first] == '0')) return false;
  if (skip(".") && digits() == 0) return false;
  if (skip("eE")) {
    skip("+-");
    if (digits() == 0) return false;
  }
  return i == text.size();
}

}  // namespace coppice
