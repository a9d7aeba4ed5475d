#include "core/error.hpp"

#include <fmt/ranges.h>

namespace coppice {

InputError::InputError(std::vector<std::string> problems)
    : Error(fmt::format("{}", fmt::join(problems, "\n"))), problems_(std::move(problems)) {}

void Problems::add_all(const std::vector<std::string>& lines) {
  lines_.insert(lines_.end(), lines.begin(), lines.end());
}

void detail::contract_failed(const char* expression, const char* file, int line,
                             const std::string& message) {
  // Only the file's name: the path of the machine it was built on helps nobody.
  const std::string_view path(file);
  const auto slash = path.rfind('/');
  throw ContractError(fmt::format("{} [{} failed at {}:{}]", message, expression,
                                  path.substr(slash == path.npos ? 0 : slash + 1), line));
}

}  // namespace coppice
