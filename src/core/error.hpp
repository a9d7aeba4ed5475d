#pragma once
// The ways in which something can go wrong, and the one macro that guards contracts. Which exit
// status an error becomes is decided in launch/; nothing here ends the process.
//
// Message grammar: problem with values (why it matters). What to do.
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A contract between two pieces of this program is broken: our bug.
class ContractError : public Error {
 public:
  using Error::Error;
};

/// A device or its library failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A collective or a peer failed.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A disk, a file or the file library failed.
class IoError : public Error {
 public:
  using Error::Error;
};

/// What the user gave is refused. Holds every problem found, each one line that names its place.
class InputError : public Error {
 public:
  explicit InputError(std::vector<std::string> problems);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

/// A run config, a flag or a model's config.json is refused.
class ConfigError : public InputError {
 public:
  using InputError::InputError;
};

/// A rollouts file, a checkpoint or another data file is refused, or is damaged.
class DataError : public InputError {
 public:
  using InputError::InputError;
};

/// Collects problems so that the user sees all of them at once.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void add_all(const std::vector<std::string>& lines);
  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }

  /// Throws E with all problems, if there are any.
  template <class E>
  void throw_if_any() const {
    if (!lines_.empty()) throw E(lines_);
  }

 private:
  std::vector<std::string> lines_;
};

namespace detail {
[[noreturn]] void contract_failed(const char* expression, const char* file, int line,
                                  const std::string& message);
}

/// Always on. COPPICE_CHECK(condition, "format", values...): states what must hold, with values.
#define COPPICE_CHECK(condition, ...)                                    \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::coppice::detail::contract_failed(#condition, __FILE__, __LINE__, \
                                         ::fmt::format(__VA_ARGS__));    \
  } while (false)

}  // namespace coppice
