// The program: one subcommand each, and the one place where an error becomes a line and an exit
// status. 0 done, 2 bad usage or input (every problem on a line of its own), 1 anything else.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "core/build_config.hpp"
#include "core/error.hpp"
#include "launch/command.hpp"
#include "launch/commands.hpp"
#include "launch/host.hpp"
#include "launch/one_line.hpp"

namespace {

using namespace coppice;

constexpr int kDone = 0, kFailed = 1, kRefused = 2;

void report(std::string_view problem) {
  fmt::print(stderr, "coppice: error [rank 0, {}]: {}\n", host_name(), one_line(problem));
}

int run(int argc, const char* const* argv) {
  CLI::App app(
      "Tensor-parallel GRPO training of transformers in which the prompt shared by the "
      "responses of a group is computed once.",
      "coppice");
  app.set_version_flag("--version", fmt::format("coppice {}", build::kVersion));
  app.require_subcommand(0, 1);
  app.footer(
      "\ncoppice SUBCOMMAND --help tells each one's options. Exit status: 0 done, 2 bad usage or "
      "input\n(every problem is listed), 1 anything else.");
  Commands commands(app);
  add_all_commands(commands);
  try {
    commands.parse_and_run(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return kDone;
    report("standard output cannot be written. Free space on its disk.");
    return kFailed;
  } catch (const CLI::Success& success) {
    return app.exit(success);  // prints help or version
  } catch (const InputError& error) {
    for (const auto& problem : error.problems()) report(problem);
    return kRefused;
  } catch (const std::bad_alloc&) {
    report("the system has no memory left for this. Use a smaller batch or model.");
    return kFailed;
  } catch (const std::exception& error) {
    report(error.what());
    return kFailed;
  }
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
