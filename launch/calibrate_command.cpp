#include "launch/calibrate_command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "checkpoint/pending_file.hpp"
#include "launch/cluster_calibration.hpp"
#include "launch/fingerprints.hpp"
#include "launch/host.hpp"
#include "launch/output_path.hpp"

namespace coppice {
namespace {

struct CalibrateOptions {
  std::string out, name = "this machine";
  std::optional<std::int64_t> threads;
  double seconds = 20;
  bool busy = false;
};

double memory_of_machine() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void check(const CalibrateOptions& options, Job& job) {
  Problems problems;
  if (job.is_first()) check_output_file(options.out, {}, problems);  // the others write nothing
  if (options.threads && (*options.threads < 1 || *options.threads > 1024))
    problems.add("--threads {}: not in [1, 1024]. Use at most the machine's cores.",
                 *options.threads);
  if (options.busy && options.threads.value_or(job.default_threads()) != 1)
    problems.add("--busy: counts what one thread computes. Give --threads 1.");
  if (!(options.seconds >= 1 && options.seconds <= 3600))
    problems.add("--seconds {}: not in [1, 3600]. 20 are enough on an idle machine.",
                 options.seconds);
  if (job.mpi().local_size() != job.size())
    problems.add(
        "{} of {} ranks are on this host (links between hosts are not told apart). Start the ranks "
        "of one host, and write between_nodes into the file by hand.",
        job.mpi().local_size(), job.size());
  problems.throw_if_any<ConfigError>();
  job.agree({fingerprint_of_text(
      "the options of calibrate",
      fmt::format("{} {} {}", options.out, options.threads.value_or(0), options.seconds))});
}

void calibrate(const CalibrateOptions& options, Job& job) {
  check(options, job);
  const auto world = job.world(600);
  const int threads = static_cast<int>(options.threads.value_or(job.default_threads()));
  if (job.is_first())
    fmt::print(stderr, "measuring {} ranks of {} threads for about {:.0f} s\n", job.size(), threads,
               options.seconds);
  ClusterProfile cluster = calibrate_cpu(
      *world, {threads, options.seconds,
               options.busy ? CalibrationClock::kProcessor : CalibrationClock::kWall});
  if (!job.is_first()) return;
  cluster.name = options.name;
  cluster.note =
      fmt::format("measured on {} by coppice calibrate; overlap is assumed", host_name());
  cluster.memory_bytes = memory_of_machine() / job.size();
  write_file_atomically(options.out, text_of(cluster));
  fmt::print("{}: {:.1f} GFLOP/s a rank at most, {:.1f} GB/s of memory\n", options.out,
             cluster.peak_flops / 1e9, cluster.memory_bandwidth / 1e9);
}

}  // namespace

void add_calibrate_command(Commands& commands) {
  auto options = std::make_shared<CalibrateOptions>();
  commands
      .add("calibrate", "Measures this machine's cores for plan --cluster",
           {.body = [options](Job& job) { calibrate(*options, job); }, .ranks = RunsOn::kAllRanks})
      .option("--out", options->out, "cluster file to write (.textproto)", Need::kRequired)
      .option("--name", options->name, "how the cluster is named in what is printed")
      .option("--threads", options->threads,
              "threads of each rank (default: the machine's cores over its ranks)")
      .option("--seconds", options->seconds, "about how long to measure (default: 20)")
      .flag("--busy", options->busy,
            "the machine does other work: count the time that a thread computes, not the clock's")
      .footer(
          "Measures, in f32: matrix products by size and direction, prefix attention by head dim, "
          "norms,\nRoPE, SwiGLU, sums of rows, the head's softmax, AdamW, and under mpirun the "
          "collectives between\nranks, which all measure at once. Start it as the run will be "
          "started: as many ranks, as many\nthreads. The file is the median of repetitions; a "
          "machine that does other work at the time\nis measured as slow as it then is. What "
          "compute hides of collectives is assumed, not measured.\nTakes up to 1.1 GiB of memory "
          "on "
          "each rank.");
}

}  // namespace coppice
