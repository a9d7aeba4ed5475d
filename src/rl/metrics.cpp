#include "rl/metrics.hpp"

#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& json, const char* name, std::optional<double> value) {
  if (value && std::isfinite(*value)) json[name] = *value;
}

// The step of a line; nothing where the line is torn.
std::optional<std::int64_t> step_of(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    return std::nullopt;
  return json["step"].get<std::int64_t>();
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  Json json;
  json["step"] = m.step;
  json["skipped"] = m.skipped;
  put(json, "loss", m.loss);
  put(json, "policy_loss", m.policy_loss);
  put(json, "kl", m.kl);
  put(json, "entropy", m.entropy);
  put(json, "clip_fraction", m.clip_fraction);
  put(json, "ratio_mean", m.ratio_mean);
  put(json, "ratio_max", m.ratio_max);
  put(json, "grad_norm", m.grad_norm);
  put(json, "learning_rate", m.learning_rate);
  json["rows"] = m.rows;
  json["logical_rows"] = m.logical_rows;
  json["visible_pairs"] = m.visible_pairs;
  json["edge_rows"] = m.edge_rows;
  json["alignment_rows"] = m.alignment_rows;
  json["loss_tokens"] = m.loss_tokens;
  json["groups"] = m.groups;
  json["responses"] = m.responses;
  if (m.zero_std_groups) json["zero_std_groups"] = *m.zero_std_groups;
  put(json, "reward_mean", m.reward_mean);
  put(json, "reward_std", m.reward_std);
  put(json, "advantage_abs_mean", m.advantage_abs_mean);
  put(json, "response_length_mean", m.response_length_mean);
  put(json, "truncated_fraction", m.truncated_fraction);
  json["microbatches"] = m.microbatches;
  put(json, "step_seconds", m.step_seconds);
  Json& seconds = json["seconds"];
  put(seconds, "plan", m.seconds.plan);
  put(seconds, "forward", m.seconds.forward);
  put(seconds, "backward", m.seconds.backward);
  put(seconds, "reduce", m.seconds.reduce);
  put(seconds, "optimizer", m.seconds.optimizer);
  put(seconds, "checkpoint", m.seconds.checkpoint);
  put(seconds, "old_logprobs", m.seconds.old_logprobs);
  if (m.rows > 0 && m.step_seconds > 0) {
    put(json, "rows_per_second", static_cast<double>(m.rows) / m.step_seconds);
    put(json, "logical_tokens_per_second", static_cast<double>(m.logical_rows) / m.step_seconds);
  }
  // A whole number, exact as long as a double is.
  json["executed_flops"] = static_cast<std::int64_t>(m.executed_flops);
  json["peak_memory_bytes"] = m.peak_memory_bytes;
  json["peak_resident_bytes"] = m.peak_resident_bytes;
  if (m.communication_bytes) json["communication_bytes"] = *m.communication_bytes;
  for (const AxisTraffic& axis : m.communication)
    json["communication"][axis.axis] = {
        {"calls", axis.calls}, {"bytes", axis.bytes}, {"seconds", axis.seconds}};
  json["bad_steps"] = m.bad_steps;
  json["fallbacks"] = m.fallbacks;
  if (!m.sharing.empty()) json["sharing"] = m.sharing;
  return json.dump();
}

MetricsFile::MetricsFile(std::filesystem::path path, std::int64_t last_step, std::string last_line)
    : path_(std::move(path)), last_step_(last_step), last_line_(std::move(last_line)) {}

void MetricsFile::settle() {
  if (file_.is_open()) return;
  std::string kept, line;
  bool has_last = last_line_.empty();
  std::error_code missing;
  bool as_kept = std::filesystem::exists(path_, missing);
  {
    std::ifstream old(path_, std::ios::binary);
    while (std::getline(old, line)) {
      const auto step = step_of(line);
      const bool keep = step && *step <= last_step_;
      as_kept = as_kept && keep && !old.eof();  // at the end: a line without its line end
      if (!keep) continue;
      has_last = has_last || *step == last_step_;
      kept += line + "\n";
    }
  }
  if (!has_last) kept += last_line_ + "\n";
  if (!as_kept || !has_last) write_file_atomically(path_, kept);
  file_.open(path_, std::ios::binary | std::ios::app);
}

void MetricsFile::write(const std::string& line) {
  settle();
  file_ << line << '\n' << std::flush;
  if (!file_)
    throw IoError(
        fmt::format("{}: writing a metrics line failed. Free space on the disk.", path_.string()));
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return std::int64_t{usage.ru_maxrss} * 1024;  // Linux counts in KiB
}

}  // namespace coppice
