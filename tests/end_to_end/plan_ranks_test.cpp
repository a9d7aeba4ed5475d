// `coppice plan` of a process grid, made without its ranks, against what they then count under
// mpirun.
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

class PlanOfRanks : public TinyRunOfRanks {};

// Without the ranks it tells what they count together, call by call.
// Mutations seen red: alignment rows counted in a rank's rows; every replica's values of the
// first's size.
TEST_F(PlanOfRanks, TellsTheVeryFiguresThatItsRanksThenCount) {
  const std::vector<std::pair<int, std::vector<std::string>>> cases = {
      {4, {"run_dir=tensor", "parallel.tensor=4", "batching.sharing=REPEATED"}},
      {4,
       {"run_dir=tensor_context", "parallel.tensor=2", "parallel.context=2",
        "numerics.recompute=BLOCK", "loss.updates_per_batch=2"}},
      {3, {"run_dir=context", "parallel.context=3", "parallel.zero=NONE"}},
      {8,
       {"run_dir=all", "parallel.tensor=2", "parallel.context=2", "parallel.data=2",
        "parallel.sequence_parallel=false", "numerics.precision=F64"}}};
  for (const auto& [ranks, own] : cases) {
    auto set = own;
    set.insert(set.end(), {"model.checkpoint=ranks.h5", "threads_per_rank=1"});
    const auto planned = plan(set);
    const auto trained = run_program(train_arguments(set), dir_.path().string(), ranks);
    ASSERT_EQ(trained.status, 0) << own[0] << "\n" << trained.err;
    const auto steps = metrics(own[0].substr(own[0].find('=') + 1));
    ASSERT_EQ(planned.at("steps").size(), steps.size()) << own[0];
    double peak = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto& step = planned["steps"][i];
      for (const char* key : {"microbatches", "rows", "alignment_rows", "visible_pairs",
                              "edge_rows", "executed_flops", "sharing", "communication_bytes"})
        EXPECT_EQ(step.at(key), steps[i].at(key)) << own[0] << ": " << key << " of step " << i + 1;
      for (const auto& [axis, collectives] : step.at("communication").items()) {
        std::int64_t calls = 0, bytes = 0;
        for (const auto& [collective, sent] : collectives.items()) {
          calls += sent.at("calls").get<std::int64_t>();
          bytes += sent.at("bytes").get<std::int64_t>();
        }
        EXPECT_EQ(calls, steps[i]["communication"].at(axis).at("calls")) << own[0] << " " << axis;
        EXPECT_EQ(bytes, steps[i]["communication"].at(axis).at("bytes")) << own[0] << " " << axis;
      }
      std::int64_t rows = 0, alignment_rows = 0;
      for (const auto& rank : step.at("ranks")) {
        rows += rank.at("rows").get<std::int64_t>();
        alignment_rows += rank.at("alignment_rows").get<std::int64_t>();
      }
      EXPECT_EQ(rows, step.at("rows")) << own[0];
      EXPECT_EQ(alignment_rows, step.at("alignment_rows")) << own[0];
      EXPECT_GE(step.at("imbalance"), 1.0);
      peak = std::max(peak, steps[i].at("peak_memory_bytes").get<double>());
    }
    EXPECT_NEAR(planned["peak_memory_bytes"].get<double>(), peak, 0.05 * peak) << own[0];
  }
}

}  // namespace
}  // namespace coppice::test
