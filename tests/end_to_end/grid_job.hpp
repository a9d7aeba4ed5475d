#pragma once
// A directory in which the program trains on one rank and on grids, and the comparison of what
// comes out. What the directory holds follows from a row of grid_runs.txt or one like it.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "end_to_end/grid_runs.hpp"
#include "end_to_end/program.hpp"
#include "end_to_end/run_files.hpp"

namespace coppice::test {

class GridJob {
 public:
  explicit GridJob(const GridRunRow& row) {
    write_file(dir_ / "config.json", model_config_of(row));
    write_file(dir_ / "rollouts.jsonl", rollouts_of(row));
    write_file(dir_ / "run.textproto", run_config_of(row));
    run({"init", "--hf-config", "config.json", "--seed", "7", "--out", "model.h5"});
  }

  /// Runs `coppice arguments...` there, on so many ranks (0: without mpirun), and returns its
  /// output.
  std::string run(const std::vector<std::string>& arguments, int ranks = 0) const {
    const auto outcome = run_program(arguments, directory(), ranks);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  }
  /// Arguments of a training run into `run_dir` up to `steps`.
  static std::vector<std::string> train(const std::string& run_dir, int steps,
                                        std::vector<std::string> set = {}) {
    set.insert(set.end(), {"run_dir=" + run_dir, "limits.max_steps=" + std::to_string(steps)});
    std::vector<std::string> arguments = {"train", "--config", "run.textproto"};
    for (const auto& assignment : set) arguments.insert(arguments.end(), {"--set", assignment});
    return arguments;
  }

  std::string directory() const { return dir_.path().string(); }
  std::filesystem::path operator/(const std::string& name) const { return dir_ / name; }
  std::vector<nlohmann::json> metrics(const std::string& run_dir) const {
    return json_lines(dir_ / (run_dir + "/metrics.jsonl"));
  }
  std::string checkpoint(const std::string& run_dir, int step) const {
    char name[64];
    std::snprintf(name, sizeof name, "/checkpoints/step_%08d.h5", step);
    return dir_ / (run_dir + name);
  }
  Tensors start() const { return checkpoint_values(dir_ / "model.h5"); }

 private:
  TemporaryDirectory dir_;
};

/// Counts, names and what is read from the rollouts are equal; what is computed is equal to
/// rounding.
inline void expect_same_figures(const nlohmann::json& got, const nlohmann::json& want,
                                double bound = 1e-12) {
  static const std::set<std::string> kOfTheGrid = {"microbatches", "alignment_rows",
                                                   "communication", "communication_bytes"};
  const nlohmann::json expected = without_times(want);
  for (const auto& [key, value] : expected.items()) {
    if (kOfTheGrid.contains(key)) continue;
    ASSERT_TRUE(got.contains(key)) << key;
    if (value.is_number_float() && key != "executed_flops") {
      const double figure = value.get<double>();
      EXPECT_NEAR(got[key].get<double>(), figure, bound * std::abs(figure)) << key;
    } else {
      EXPECT_EQ(got[key], value) << key;
    }
  }
  EXPECT_LE(got["microbatches"], want["microbatches"]);
}

/// Weights by distance over the distance moved, moments by that over their own size.
inline void expect_same_state(const std::string& got, const std::string& want, const Tensors& start,
                              double bound = 1e-8) {
  EXPECT_LE(distance_over_moved(checkpoint_values(got), checkpoint_values(want), start), bound);
  for (const std::string moment : {"/optimizer/exp_avg/", "/optimizer/exp_avg_sq/"}) {
    const Tensors expected = checkpoint_values(want, moment);
    EXPECT_LE(distance_over_moved(checkpoint_values(got, moment), expected, zeros_like(expected)),
              bound)
        << moment;
  }
}

/// Every dataset of two checkpoints.
inline void expect_same_bits(const std::string& a, const std::string& b) {
  const auto one = checkpoint_values(a, "/"), two = checkpoint_values(b, "/");
  ASSERT_FALSE(one.empty());
  EXPECT_TRUE(one == two) << a << " and " << b << " differ by " << distance(one, two);
}

}  // namespace coppice::test
