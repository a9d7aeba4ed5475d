// Rates of prefix attention on a device: plain causal sequences of 2K to 32K as peers' tables have
// them, and groups whose prompt and one response are as long, which share the prompt's keys.
#include <fmt/format.h>

#include "device/attention_problem.hpp"
#include "device/benches.hpp"

namespace coppice::bench {
namespace {

struct Case {
  std::string name;
  AttentionShape shape;
};

// Rows that all plain cases have, as the sequences are short or long: peers' tables do so.
constexpr std::int64_t kPlainRows = 32768;
constexpr std::int64_t kGroupSize = 8;

// Three quarters of a sequence are its prompt.
Case grouped(std::string name, std::int64_t length, std::int64_t groups, std::int64_t heads,
             std::int64_t kv_heads, std::int64_t dim) {
  return {std::move(name),
          {length - length / 4, length / 4, kGroupSize, groups, heads, kv_heads, dim}};
}

std::vector<Case> cases(bool tiny) {
  if (tiny) {
    return {{"tiny_d64_plain", {96, 0, 0, 2, 2, 1, 64}},
            {"tiny_d128_plain", {65, 0, 0, 1, 2, 2, 128}},
            {"tiny_d64_grouped", {40, 17, 3, 2, 2, 1, 64}},
            {"tiny_d128_grouped", {64, 16, 2, 1, 1, 1, 128}}};
  }
  std::vector<Case> all;
  // The lengths that peers quote come first.
  for (const std::int64_t length : {8192, 2048, 32768, 4096, 16384}) {
    const auto kilo = length / 1024, count = kPlainRows / length;
    for (const std::int64_t dim : {128, 64}) {
      const auto heads = 2048 / dim;
      all.push_back(
          {fmt::format("d{}_{}k_plain", dim, kilo), {length, 0, 0, count, heads, heads, dim}});
      all.push_back(
          grouped(fmt::format("d{}_{}k_grouped", dim, kilo), length, count, heads, heads, dim));
    }
    if (length == 8192) {
      all.push_back({"llama8b_8k_plain", {length, 0, 0, count, 32, 8, 128}});
      all.push_back(grouped("llama8b_8k_grouped", length, count, 32, 8, 128));
      all.push_back(grouped("smollm2_2k_grouped", 2048, 16, 9, 3, 64));
    }
  }
  return all;
}

}  // namespace

void attention_bench(const BenchOptions& options, Report& report) {
  for (const Case& c : cases(options.tiny)) {
    report.run("attention/" + c.name, [&] {
      DeviceRun run;
      AttentionProblem problem(run, c.shape);
      problem.check();
      const double forward = median_seconds(
          run, [&] { problem.forward(); }, options.sample);
      const double backward = median_seconds(
          run, [&] { problem.backward(); }, options.sample);
      const double forward_rate = problem.forward_flops() / forward;
      const double backward_rate = problem.backward_flops() / backward;
      const AttentionShape& s = c.shape;
      return nlohmann::json{
          {"prefix", s.prefix},
          {"response", s.response},
          {"group_size", s.group_size},
          {"groups", s.groups},
          {"heads", s.heads},
          {"kv_heads", s.kv_heads},
          {"head_dim", s.dim},
          {"rows", s.rows()},
          {"visible_pairs", problem.visible_pairs()},
          {"forward_seconds", forward},
          {"backward_seconds", backward},
          {"forward_tflops", forward_rate / 1e12},
          {"backward_tflops", backward_rate / 1e12},
          {"text",
           fmt::format("{:6} rows  forward {:8.3f} ms {:6.1f} TFLOP/s{}  backward {:8.3f} ms "
                       "{:6.1f} TFLOP/s{}",
                       s.rows(), 1e3 * forward, forward_rate / 1e12,
                       options.peak_text(forward_rate), 1e3 * backward, backward_rate / 1e12,
                       options.peak_text(backward_rate))}};
    });
  }
}

}  // namespace coppice::bench
