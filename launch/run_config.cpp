#include "launch/run_config.hpp"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <array>

#include "configs/run_config.pb.h"
#include "launch/config_value.hpp"
#include "launch/run_config_resolve.hpp"

namespace coppice {
namespace {

namespace pb = google::protobuf;

// Blocks and fields of a run that its continuation may set anew. run_dir is where the run now is.
bool may_change(const std::string& path) {
  constexpr std::array kFields = {"limits",  "parallel", "checkpoint",       "device",
                                  "run_dir", "batching", "threads_per_rank", "numerics.recompute"};
  return std::any_of(kFields.begin(), kFields.end(), [&](const std::string& field) {
    return path == field || path.rfind(field + ".", 0) == 0;
  });
}

RunConfig checked(config::RunConfig& config, RunConfigText& text, const Problems& problems,
                  RunConfigUse use, const JobSize& job) {
  check_run_config(config, text, use, job);
  problems.throw_if_any<ConfigError>();
  const std::string tensor_place = text.place("parallel.tensor");
  resolve_run_config(config, use, job);
  RunConfig plain = plain_values(config);
  plain.tensor_place = tensor_place;
  return plain;
}

}  // namespace

std::string RunConfig::common_text() const {
  // A rank's default depends on its host and on how many ranks that runs.
  config::RunConfig common;
  pb::TextFormat::ParseFromString(text(), &common);
  common.clear_threads_per_rank();
  std::string printed;
  pb::TextFormat::PrintToString(common, &printed);
  return printed;
}

RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& set,
                          RunConfigUse use, const JobSize& job) {
  config::RunConfig config;
  Problems problems;
  RunConfigText text(config, problems);
  text.read(path.string(), config_file_content(path, "a run config"));
  for (const auto& assignment : set) text.set(assignment);
  return checked(config, text, problems, use, job);
}

RunConfig make_score_config(const ScoreFlags& flags, const std::vector<std::string>& set,
                            const JobSize& job) {
  config::RunConfig config;
  Problems problems;
  RunConfigText text(config, problems);
  for (const auto& assignment : set) {
    const std::string block = assignment.substr(0, assignment.find_first_of(".="));
    if (block == "parallel" || block == "numerics" || block == "batching" ||
        block == "threads_per_rank")
      text.set(assignment);
    else
      problems.add(
          "--set {}: coppice score takes threads_per_rank and fields of parallel, numerics and "
          "batching only.",
          assignment);
  }
  const auto flag = [&](const char* name, const std::string& value, const std::string& field) {
    if (value.empty()) return;
    if (text.given(field)) {
      problems.add("--{} {} and {} say the same thing twice. Give one of them.", name, value,
                   text.place(field));
      return;
    }
    std::string upper = value;
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    text.set_flag(field, upper, fmt::format("--{} {}", name, value));
  };
  flag("sharing", flags.sharing, "batching.sharing");
  flag("precision", flags.precision, "numerics.precision");
  flag("device", flags.device, "device");
  if (!config.batching().has_sharing())
    config.mutable_batching()->set_sharing(config::Batching::GROUPED);
  return checked(config, text, problems, RunConfigUse::kScore, job);
}

std::vector<std::string> changes_that_forbid_resume(const std::string& before,
                                                    const std::string& now,
                                                    const std::string& origin) {
  config::RunConfig old_config, new_config;
  Problems problems;
  RunConfigText(old_config, problems).read(origin, before);
  RunConfigText(new_config, problems).read("the resolved config", now);
  std::vector<std::string> lines = problems.lines();
  for (const auto& change : changed_fields(old_config, new_config))
    if (!may_change(change.path))
      lines.push_back(fmt::format(
          "{}: {} = {} cannot change to {} (a resumed run must go on as it began). Keep the old "
          "value, or start anew in another run_dir.",
          origin, change.path, change.before, change.now));
  return lines;
}

std::optional<GridSizes> grid_of(const std::string& text) {
  config::RunConfig config;
  Problems problems;
  RunConfigText(config, problems).read("config", text);
  const auto& grid = config.parallel();
  const auto is_size = [](std::int64_t ranks) { return ranks >= 1 && ranks <= 1'000'000'000; };
  if (!problems.empty() || !is_size(grid.tensor()) || !is_size(grid.context()) ||
      !is_size(grid.data()))
    return std::nullopt;
  return GridSizes{static_cast<int>(grid.tensor()), static_cast<int>(grid.context()),
                   static_cast<int>(grid.data())};
}

}  // namespace coppice
