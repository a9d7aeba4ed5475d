// Benches of the CUDA backend as launch/device_check runs them; each can be run by hand. Every
// result is checked before its time is told. On the emulated device they run with tiny sizes to
// their end, and the times mean nothing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "core/build_config.hpp"
#include "core/cuda/runtime.hpp"
#include "device/benches.hpp"
#include "device/device_run.hpp"

namespace coppice::bench {

nlohmann::json BenchOptions::share_of_peak(double flops_per_second) const {
  return peak > 0 ? nlohmann::json(flops_per_second / peak) : nlohmann::json();
}

std::string BenchOptions::peak_text(double flops_per_second) const {
  return peak > 0 ? fmt::format("  {:4.1f} % of peak", 100 * flops_per_second / peak) : "";
}

namespace {

using Bench = void (*)(const BenchOptions&, Report&);

void tell_device(const cuda::DeviceProperties& device, const BenchOptions& options,
                 Report& report) {
  report.note(
      fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", device.name,
                  device.compute_capability / 10, device.compute_capability % 10,
                  device.multiprocessors, static_cast<double>(device.memory_bytes) / (1 << 30)),
      {{"device", device.name},
       {"compute_capability", device.compute_capability},
       {"multiprocessors", device.multiprocessors},
       {"memory_bytes", device.memory_bytes},
       {"emulated", build::kEmulatedDevice},
       {"peak_tflops", options.peak > 0 ? nlohmann::json(options.peak / 1e12) : nlohmann::json()}});
  if (build::kEmulatedDevice) {
    report.note("emulated: times mean nothing");
  } else if (options.peak == 0) {
    report.note("no peak is known for this device: no share of it is told");
  }
}

int run(Bench bench, BenchOptions options, bool json, double seconds) {
  Report report(json, seconds);
  try {
    const auto device = cuda::properties({DeviceKind::kCuda, 0});
    options.peak = peak_flops(device.name);
    options.memory_bytes = device.memory_bytes;
    tell_device(device, options, report);
    if (bench != nullptr) bench(options, report);
  } catch (const std::exception& error) {
    report.note(fmt::format("FAILED: {}", error.what()), {{"problem", error.what()}});
    return 1;
  }
  return report.all_right() ? 0 : 1;
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  using namespace coppice::bench;
  BenchOptions options{.tiny = coppice::build::kEmulatedDevice};
  bool json = false;
  double seconds = 600;
  Bench bench = nullptr;
  CLI::App app("Benches of the CUDA backend. Each result is checked before its time is told.");
  app.add_flag("--tiny,!--full", options.tiny, "tiny sizes (always, where the device is emulated)");
  app.add_flag("--json", json, "a JSON object for each line");
  app.add_option("--seconds", seconds, "leave out what would take longer")->capture_default_str();
  app.require_subcommand(1);
  app.fallthrough();
  app.add_subcommand("info", "what the device is");
  const auto add = [&](const char* name, const char* text, Bench function) {
    app.add_subcommand(name, text)->callback([&bench, function] { bench = function; });
  };
  add("attention", "attention alone, forward and backward, plain and grouped", attention_bench);
  add("gemm", "matrix products at a training step's shapes", gemm_bench);
  add("train", "training steps, grouped and repeated", train_bench);
  add("dualkv", "the workload of DualKV's paper, grouped and repeated", dualkv_bench);
  CLI11_PARSE(app, argc, argv);
  if (options.tiny) options.sample = 0;
  return run(bench, options, json, seconds);
}
