#pragma once
// Process grids of a test program's ranks, each with a tiny model that its tensor ranks can share.
#include <memory>
#include <vector>

#include "model/policy_model.hpp"
#include "model/tiny_models.hpp"
#include "parallel/process_grid.hpp"
#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

struct GridCase {
  GridSizes sizes;
  SequenceParallel sequence_parallel;
  TinyCase tiny;
};

inline int sharers_of(const GridCase& c) {
  return std::max(1, c.sizes.tensor / static_cast<int>(c.tiny.kv_heads));
}

/// Every grid of `ranks` ranks with 1 to 4 tensor ranks, with and without sequence parallelism; in
/// turn tied and untied, of all families; key-value heads shared where there are fewer than ranks.
inline std::vector<GridCase> grid_cases(int ranks) {
  const std::vector<std::string> families = {"Llama", "Qwen2", "Qwen3"};
  std::vector<GridCase> cases;
  for (int tensor = 1; tensor <= 4; ++tensor)
    for (int context = 1; context <= ranks; ++context) {
      if (ranks % (tensor * context) != 0) continue;
      for (const auto sequence : {SequenceParallel::kNo, SequenceParallel::kYes}) {
        if (tensor == 1 && sequence == SequenceParallel::kYes) continue;
        const auto i = cases.size();
        TinyCase tiny{families[i % families.size()], i % 2 == 0, 4, 2, 6, 61};
        if (tensor == 3) tiny = {families[i % families.size()], i % 2 == 0, 3, 1, 8, 61};
        cases.push_back({{tensor, context, ranks / (tensor * context)}, sequence, tiny});
      }
    }
  return cases;
}

/// A rank's part of the model, drawn as on one rank.
struct GridModel {
  GridModel(const GridCase& c, DType dtype, WithGradients gradients)
      : grid(ranks_session(), c.sizes, {.seconds = 60}, sharers_of(c), c.sequence_parallel),
        context(1),
        model(std::make_unique<PolicyModel>(config_of(c.tiny), grid.parallel(), dtype,
                                            context.memory(), gradients)) {
    model->initialize(3);
  }
  ProcessGrid grid;
  TestContext context;
  std::unique_ptr<PolicyModel> model;
};

inline std::string name_of(const GridCase& c) {
  return fmt::format("tp {} cp {} dp {}{} {}", c.sizes.tensor, c.sizes.context, c.sizes.data,
                     c.sequence_parallel == SequenceParallel::kYes ? " sp" : "", c.tiny.name());
}

}  // namespace coppice::test
