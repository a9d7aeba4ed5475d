// Prints the machine's own single-precision matrix rate in GFLOP/s: the best of oneDNN's sgemm over
// 1024, 2048 and 4096 cubed. For scripts that measure it between other things; the benches of this
// folder call SgemmRate themselves.
#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>

#include "support/sgemm_rate.hpp"

int main(int argc, char** argv) {
  int threads = omp_get_num_procs(), samples = 1;
  CLI::App app("Measures oneDNN's sgemm.");
  app.add_option("--threads", threads, "threads")->capture_default_str();
  app.add_option("--samples", samples, "how often each size is measured")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  coppice::bench::SgemmRate rate(threads);
  for (int sample = 0; sample < samples; ++sample) rate.sample();
  fmt::print("{:.1f}\n", rate.rate() / 1e9);
  return 0;
}
