#pragma once
// How a subcommand declares its options, so that each launch/<name>_command.cpp holds only its own
// names and work. Stands on CLI11 for the syntax, but collects what is wrong instead of stopping at
// the first: a refused command line lists all its problems.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/job.hpp"

namespace CLI {
class App;
}

namespace coppice {

enum class Need { kOptional, kRequired };

/// One subcommand while it is declared. Variables that options write to must live until the
/// program ends (the pattern: one `std::make_shared<Options>()` captured by the body).
class Command {
 public:
  Command(CLI::App& app, std::vector<std::string>& problems) : app_(&app), problems_(&problems) {}

  /// An option with one value ("--out"), or a positional argument (a name without dashes).
  /// T is std::string, std::int64_t, std::uint64_t, double, or std::optional of one of them.
  template <class T>
  Command& option(const std::string& name, T& value, const std::string& description,
                  Need need = Need::kOptional);
  /// An option whose value is one of `choices`.
  template <class T>
  Command& choice(const std::string& name, T& value, const std::vector<std::string>& choices,
                  const std::string& description, Need need = Need::kOptional);
  /// An option that may be given several times.
  Command& list(const std::string& name, std::vector<std::string>& values,
                const std::string& description);
  Command& flag(const std::string& name, bool& value, const std::string& description);
  /// Text below the options in --help.
  Command& footer(const std::string& text);

  /// Adds what is wrong with the given command line to the problems.
  void check_given() const;

 private:
  CLI::App* app_;
  std::vector<std::string>* problems_;
  std::vector<std::string> required_;
};

/// Which ranks run a command's body.
enum class RunsOn {
  kFirstRank,  ///< the others wait for its end
  kAllRanks,
};

/// What the program does with a command line it has accepted.
struct Work {
  std::string name = {};  ///< the subcommand's; Commands::add sets it
  std::function<void(Job&)> body = {};  ///< reports failure by throwing
  RunsOn ranks = RunsOn::kFirstRank;
  OnSignal on_signal = OnSignal::kEnd;
};

/// All subcommands of the program.
class Commands {
 public:
  explicit Commands(CLI::App& app) : app_(&app) {}

  Command& add(const std::string& name, const std::string& description, Work work);

  /// What the command line asks for.
  ///
  /// Errors    ConfigError with every problem of the command line
  const Work& parse(int argc, const char* const* argv);

 private:
  struct Entry {
    Command command;
    Work work;
  };
  CLI::App* app_;
  std::vector<std::string> problems_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace coppice
