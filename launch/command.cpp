#include "launch/command.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.hpp"

namespace coppice {
namespace {

template <class T>
bool assign(const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
    return true;
  } else {
    T parsed{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (error != std::errc{} || end != text.data() + text.size()) return false;
    value = parsed;
    return true;
  }
}

template <class T>
bool assign(const std::string& text, std::optional<T>& value) {
  T parsed{};
  if (!assign(text, parsed)) return false;
  value = parsed;
  return true;
}

template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};

template <class T>
constexpr const char* kind_of() {
  using Value = typename ValueOf<T>::type;
  if constexpr (std::is_same_v<Value, std::string>) return "text";
  if constexpr (std::is_same_v<Value, double>) return "a number";
  if constexpr (std::is_same_v<Value, std::uint64_t>) return "a whole number of 0 or more";
  return "a whole number";
}

template <class T>
constexpr const char* type_name() {
  using Value = typename ValueOf<T>::type;
  return std::is_same_v<Value, std::string> ? "TEXT" : "NUMBER";
}

std::string described(const std::string& description, Need need) {
  return need == Need::kRequired ? description + " (required)" : description;
}

}  // namespace

template <class T>
Command& Command::option(const std::string& name, T& value, const std::string& description,
                         Need need) {
  auto* problems = problems_;
  app_->add_option(
          name,
          [name, &value, problems](const CLI::results_t& given) {
            if (given.size() > 1)
              problems->push_back(
                  fmt::format("{} is given {} times. Give it once.", name, given.size()));
            else if (!assign(given.front(), value))
              problems->push_back(
                  fmt::format("{} {} is not {}.", name, given.front(), kind_of<T>()));
            return true;
          },
          described(description, need))
      ->type_name(type_name<T>())
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  if (need == Need::kRequired) required_.push_back(name);
  return *this;
}

template <class T>
Command& Command::choice(const std::string& name, T& value, const std::vector<std::string>& choices,
                         const std::string& description, Need need) {
  auto* problems = problems_;
  app_->add_option(
          name,
          [name, &value, choices, problems](const CLI::results_t& given) {
            if (given.size() > 1)
              problems->push_back(
                  fmt::format("{} is given {} times. Give it once.", name, given.size()));
            else if (std::find(choices.begin(), choices.end(), given.front()) == choices.end())
              problems->push_back(fmt::format("{} {} is not known. Choose one of: {}.", name,
                                              given.front(), fmt::join(choices, ", ")));
            else
              assign(given.front(), value);
            return true;
          },
          described(description, need))
      ->type_name(fmt::format("{}", fmt::join(choices, "|")))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  if (need == Need::kRequired) required_.push_back(name);
  return *this;
}

Command& Command::list(const std::string& name, std::vector<std::string>& values,
                       const std::string& description) {
  app_->add_option(
          name,
          [&values](const CLI::results_t& given) {
            values = given;
            return true;
          },
          description)
      ->type_name("TEXT")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  return *this;
}

Command& Command::flag(const std::string& name, bool& value, const std::string& description) {
  app_->add_flag(name, value, description);
  return *this;
}

Command& Command::footer(const std::string& text) {
  app_->footer("\n" + text);
  return *this;
}

void Command::check_given() const {
  for (const auto& name : required_)
    if (app_->count(name) == 0)
      problems_->push_back(
          fmt::format("{} is missing (see coppice {} --help).", name, app_->get_name()));
  for (const auto& extra : app_->remaining())
    if (extra != "--")  // ends the options; what stands behind it is told by itself
      problems_->push_back(fmt::format("{} is not an argument of coppice {} (see its --help).",
                                       extra, app_->get_name()));
}

template Command& Command::option(const std::string&, std::string&, const std::string&, Need);
template Command& Command::option(const std::string&, std::int64_t&, const std::string&, Need);
template Command& Command::option(const std::string&, std::uint64_t&, const std::string&, Need);
template Command& Command::option(const std::string&, double&, const std::string&, Need);
template Command& Command::option(const std::string&, std::optional<std::string>&,
                                  const std::string&, Need);
template Command& Command::option(const std::string&, std::optional<std::int64_t>&,
                                  const std::string&, Need);
template Command& Command::option(const std::string&, std::optional<std::uint64_t>&,
                                  const std::string&, Need);
template Command& Command::option(const std::string&, std::optional<double>&, const std::string&,
                                  Need);
template Command& Command::choice(const std::string&, std::string&, const std::vector<std::string>&,
                                  const std::string&, Need);
template Command& Command::choice(const std::string&, std::optional<std::string>&,
                                  const std::vector<std::string>&, const std::string&, Need);

Command& Commands::add(const std::string& name, const std::string& description, Work work) {
  CLI::App* app = app_->add_subcommand(name, description);
  app->allow_extras();
  work.name = name;
  auto& entry = entries_[name];
  entry = std::make_unique<Entry>(Entry{Command(*app, problems_), std::move(work)});
  return entry->command;
}

const Work& Commands::parse(int argc, const char* const* argv) {
  app_->allow_extras();
  std::string syntax;
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success&) {  // --help and --version; the caller prints them
    throw;
  } catch (const CLI::ParseError& error) {
    syntax = error.what();
  }
  const auto chosen = app_->get_subcommands();
  if (!syntax.empty()) problems_.insert(problems_.begin(), syntax + ".");
  if (chosen.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    if (syntax.empty()) {
      const auto extras = app_->remaining();
      problems_.push_back(fmt::format(
          "{}. Give one of: {} (see coppice --help).",
          extras.empty() ? "no subcommand is given" : extras.front() + " is not a subcommand",
          fmt::join(names, ", ")));
    }
    throw ConfigError(problems_);
  }
  for (const auto& extra : app_->remaining())
    problems_.push_back(fmt::format("{} is not an argument of coppice (see its --help).", extra));
  const auto& entry = *entries_.at(chosen.front()->get_name());
  entry.command.check_given();
  if (!problems_.empty()) throw ConfigError(problems_);
  return entry.work;
}

}  // namespace coppice
