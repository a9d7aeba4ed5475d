#pragma once
// A golden case as a user would run it, on one rank or on a grid: import, score and train in double
// precision, held against what transformers says of it.
#include <ostream>
#include <string>
#include <vector>

#include "end_to_end/run_files.hpp"
#include "parallel/process_grid.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {

struct GoldenRun {
  std::string name, sharing;  ///< "grouped", "repeated"
  GridSizes grid = {};
  std::string words() const;
};
void PrintTo(const GoldenRun& run, std::ostream* out);

class GoldenJob {
 public:
  explicit GoldenJob(const GoldenRun& run);

  /// Fails the test where values are off by more than 1e-12.
  void expect_scores_of_transformers() const;
  /// Fails the test where figures of three steps or the weights after them are off.
  void expect_training_of_transformers() const;

  /// Scores by group and response, of the last expect_scores_of_transformers().
  Tensors scores(const std::string& field) const;
  std::vector<nlohmann::json> metrics() const;
  std::string checkpoint() const { return dir_ / "run/checkpoints/step_00000003.h5"; }
  Tensors start() const { return checkpoint_values(dir_ / "model.h5"); }

 private:
  void run(std::vector<std::string> arguments) const;

  GoldenRun run_;
  TemporaryDirectory dir_;
  std::string golden_;
  nlohmann::json expected_;
};

}  // namespace coppice::test
