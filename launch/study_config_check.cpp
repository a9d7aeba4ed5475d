#include "launch/study_config_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "configs/study_config.pb.h"
#include "launch/run_config_check.hpp"
#include "rl/group_source.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using config::Batching;
using config::Numerics;

constexpr std::int64_t kMostPoints = 10'000;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;  // of a step's generated groups

class Checker {
 public:
  Checker(const config::StudyConfig& config, RunConfigText& text) : config_(config), text_(text) {}

  void check() {
    const config::Sweep& sweep = config_.sweep();
    required("out_dir", config_.out_dir());
    required("base", config_.base());
    check_out_dir();
    check_file(text_, "base", config_.base());
    check_file(text_, "rollouts", config_.rollouts());
    check_file(text_, "cluster", config_.cluster());
    check_path(text_, "rollouts", config_.rollouts());
    check_path(text_, "cluster", config_.cluster());
    check_models();
    for (const auto& [path, value, least] :
         {std::tuple{"groups_per_step", config_.groups_per_step(), 1},
          {"steps", config_.steps(), 1},
          {"warmup_steps", config_.warmup_steps(), 0},
          {"repetitions", config_.repetitions(), 1}})
      range(path, value, least, 1'000'000);
    if (config_.memory_budget_bytes() < 0)
      problem("memory_budget_bytes", "{} is less than 0. Give bytes, or 0 for no search.",
              config_.memory_budget_bytes());
    check_lengths("sweep.prefix_length", sweep.prefix_length(), 100'000'000);
    check_lengths("sweep.response_length", sweep.response_length(), 100'000'000);
    check_lengths("sweep.group_size", sweep.group_size(), 1'000'000);
    once("sweep.sharing", sweep.sharing(),
         [](int value) { return Batching::Sharing_Name(static_cast<Batching::Sharing>(value)); });
    once("sweep.recompute", sweep.recompute(), [](int value) {
      return Numerics::Recompute_Name(static_cast<Numerics::Recompute>(value));
    });
    check_grids();
    if (!config_.rollouts().empty() && config_.memory_budget_bytes() > 0)
      problem("memory_budget_bytes",
              "goes with the sweep's lengths only (recorded groups have one size). Remove it, or "
              "rollouts.");
  }

 private:
  template <class... Args>
  void problem(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
    text_.add_problem(path, fmt::format(format, std::forward<Args>(args)...));
  }
  void required(const std::string& path, const std::string& value) {
    if (!text_.given(path))
      problem(path, "missing. Set it.");
    else if (value.empty())
      problem(path, "empty. Give it a value.");
    check_path(text_, path, value);
  }
  void range(const std::string& path, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least) problem(path, "{} is too small. Give {} or more.", value, least);
    if (value > most) problem(path, "{} is too large. Give {} or less.", value, most);
  }
  // What exists of the path is directories.
  void check_out_dir() {
    if (config_.out_dir().empty() || !is_path(config_.out_dir())) return;
    std::error_code error;
    fs::path existing = fs::absolute(config_.out_dir());
    while (fs::symlink_status(existing, error).type() == fs::file_type::not_found &&
           existing.has_relative_path())
      existing = existing.parent_path();
    if (!fs::is_directory(existing, error))
      problem("out_dir", "{} is not a directory. Give another out_dir.", existing.string());
  }
  void check_models() {
    for (int i = 0; i < config_.model_config_size(); ++i) {
      const std::string path = fmt::format("model_config[{}]", i);
      const std::string& name = config_.model_config(i);
      check_path(text_, path, name);
      if (name.empty()) problem(path, "empty. Give the path of a config.json.");
      check_file(text_, path, name);
    }
    once("model_config", config_.model_config(), [](const std::string& name) { return name; });
  }
  template <class Values, class Name>
  void once(const std::string& path, const Values& values, const Name& name) {
    for (int i = 0; i < values.size(); ++i)
      for (int earlier = 0; earlier < i; ++earlier)
        if (values[earlier] == values[i]) {
          problem(fmt::format("{}[{}]", path, i),
                  "{} stands there twice (each value is one of the axis). Remove one.",
                  name(values[i]));
          break;
        }
  }
  template <class Values>
  void check_lengths(const std::string& path, const Values& values, std::int64_t most) {
    const bool recorded = !config_.rollouts().empty();
    if (recorded && text_.given(path))
      problem(path, "does not go with rollouts (whose groups have their own). Remove one of them.");
    if (!recorded && !text_.given(path))
      problem(path, "missing (no rollouts are given). Set it to one value or a list.");
    else if (!recorded && values.empty())
      problem(path, "has no value. Give one or more.");
    for (int i = 0; i < values.size(); ++i)
      range(fmt::format("{}[{}]", path, i), values[i], 1, most);
    once(path, values, [](std::int64_t value) { return value; });
  }
  void check_grids() {
    const auto& grids = config_.sweep().grid();
    const auto same = [](const config::Grid& a, const config::Grid& b) {
      return a.tensor() == b.tensor() && a.context() == b.context() && a.data() == b.data();
    };
    for (int i = 0; i < grids.size(); ++i) {
      const std::string path = fmt::format("sweep.grid[{}]", i);
      range(path + ".tensor", grids[i].tensor(), 1, 1 << 20);
      range(path + ".context", grids[i].context(), 1, 1 << 20);
      range(path + ".data", grids[i].data(), 1, 1 << 20);
      const std::int64_t ranks = saturating_product(
          saturating_product(grids[i].tensor(), grids[i].context()), grids[i].data());
      if (ranks > 1 << 20) problem(path, "{} ranks are more than any job has. Use less.", ranks);
      for (int earlier = 0; earlier < i; ++earlier)
        if (same(grids[earlier], grids[i]))
          problem(path, "is the same as sweep.grid[{}]. Remove one.", earlier);
    }
  }

  const config::StudyConfig& config_;
  RunConfigText& text_;
};

}  // namespace

void check_study_config(const config::StudyConfig& config, RunConfigText& text) {
  Checker(config, text).check();
}

void check_study_size(const StudySweep& sweep, std::size_t models, std::int64_t groups_per_step,
                      RunConfigText& text) {
  const std::int64_t points = point_count(models, sweep);
  if (points > kMostPoints)
    text.add_problem("sweep", fmt::format("{} combinations are more than {}. Give fewer values.",
                                          points, kMostPoints));
  if (sweep.group_size.empty()) return;
  const auto most = [](const auto& values) {
    return *std::max_element(values.begin(), values.end());
  };
  const std::int64_t group =
      most(sweep.prefix_length) +
      saturating_product(most(sweep.group_size), most(sweep.response_length));
  const std::int64_t tokens = saturating_product(groups_per_step, group);
  if (tokens > kMostTokens)
    text.add_problem(
        "sweep", fmt::format("a step of {} generated tokens is beyond the {} that a study makes. "
                             "Give smaller lengths, group sizes or groups_per_step.",
                             tokens, kMostTokens));
}

}  // namespace coppice
