// The program: one subcommand each, and the one place where an error becomes an exit status. 0
// done, 2 bad usage or input (every problem on a line of its own), 1 anything else.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "core/build_config.hpp"
#include "core/error.hpp"
#include "launch/command.hpp"
#include "launch/commands.hpp"
#include "launch/fingerprints.hpp"
#include "launch/host.hpp"
#include "launch/job.hpp"
#include "launch/one_line.hpp"

namespace {

using namespace coppice;

constexpr int kFailed = 1, kRefused = 2;

// How `work` ends on this rank.
template <class F>
Ending ending_of(const F& work) {
  try {
    work();
    return {};
  } catch (const CLI::Success&) {
    throw;
  } catch (const PeerFailed&) {
    return {};
  } catch (const InputError& error) {
    return {kRefused, error.problems()};
  } catch (const CommError& error) {
    return {kFailed, {error.what()}, /*within_collective=*/true};
  } catch (const std::bad_alloc&) {
    return {kFailed, {"the system has no memory left for this. Use a smaller batch or model."}};
  } catch (const std::exception& error) {
    return {kFailed, {error.what()}};
  }
}

// Ranks that were told to do different things would wait for each other, or pass over what some
// were told. Where one rank works for all, what the others were told goes unread, so the whole
// command line counts; else the commands compare what they read.
Fingerprint told(const Work& work, int argc, char** argv) {
  std::string text = work.name;
  if (work.ranks == RunsOn::kFirstRank)
    for (int i = 1; i < argc; ++i) text += fmt::format("\n{}", argv[i]);
  return fingerprint_of_text("the command line", text);
}

void run(const Work& work, Job& job) {
  if (work.ranks == RunsOn::kFirstRank && !job.is_first()) return;
  work.body(job);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw IoError("standard output cannot be written. Free space on its disk.");
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  CLI::App app(
      "Tensor-parallel GRPO training of transformers in which the prompt shared by the "
      "responses of a group is computed once.",
      "coppice");
  app.set_version_flag("--version", fmt::format("coppice {}", build::kVersion));
  app.require_subcommand(0, 1);
  app.footer(
      "\ncoppice SUBCOMMAND --help tells each one's options. Each runs alone or on several ranks "
      "under mpirun\nor srun (see launch/run). Exit status: 0 done, 2 bad usage or input (every "
      "problem is listed),\n1 anything else.");
  Commands commands(app);
  add_all_commands(commands);
  Work work;
  Ending ending;
  try {
    ending = ending_of([&] { work = commands.parse(argc, argv); });
  } catch (const CLI::Success& success) {  // help or version, which exit() prints
    work.body = [&app, success](Job&) { app.exit(success); };
  }
  try {
    Job job(work.on_signal);
    if (ending.status == 0)
      ending = ending_of([&] {
        job.set_command(told(work, argc, argv));
        if (work.ranks == RunsOn::kFirstRank) job.agree({});
        run(work, job);
      });
    return job.end(ending);
  } catch (const CommError& error) {  // MPI itself cannot be started or does not answer
    fmt::print(stderr, "coppice: error [{}]: {}\n", host_name(), one_line(error.what()));
    return kFailed;
  }
}
