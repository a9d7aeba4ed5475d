// Mistakes in attention's CUDA kernels, kept as tests: copies of the kernels that differ in one
// place (mutations.cmake), each noticed by what the other tests rely on. A barrier or wait taken
// out stops the emulated device, on every seed and in both orders of threads; a wrong mask or sum
// shows against the reference; garbage that gets out of its row shows in another one.
#include <gtest/gtest.h>

#include "attention/device_attention.hpp"
#include "core/cuda/emulated/gpu.hpp"

namespace coppice {

#define COPPICE_forward_MUTATION(name, kind)                                                      \
  namespace mutated_##name {                                                                      \
    void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q, \
                                  std::span<const KeySpace> spaces, double softmax_scale,         \
                                  TensorView out, TensorView softmax_lse);                        \
  }
#define COPPICE_backward_MUTATION(name, kind)                                                      \
  namespace mutated_##name {                                                                       \
    void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q, \
                                   std::span<const KeySpace> spaces, ConstTensorView out,          \
                                   ConstTensorView softmax_lse, ConstTensorView d_out,             \
                                   double softmax_scale, TensorView dq,                            \
                                   std::span<const KeySpaceGrad> grads);                           \
  }
#include "mutations/list.inc"
#undef COPPICE_forward_MUTATION
#undef COPPICE_backward_MUTATION

namespace {

using test::AttentionOps;
using test::DeviceContext;
using test::DeviceProblem;

struct Mutation {
  std::string name, noticed_by;
  AttentionOps ops;
};

std::vector<Mutation> mutations() {
  return {
      {"none", "nothing", {}},
#define COPPICE_forward_MUTATION(name, kind) \
  {#name, #kind, {.forward = mutated_##name::prefix_attention_forward}},
#define COPPICE_backward_MUTATION(name, kind) \
  {#name, #kind, {.backward = mutated_##name::prefix_attention_backward}},
#include "mutations/list.inc"
#undef COPPICE_forward_MUTATION
#undef COPPICE_backward_MUTATION
  };
}

// Several tiles of keys for the prompt and for a response of its own, none of them whole.
const std::vector<reference::TreeSegment> kTree{{70, -1}, {67, 0}, {9, 0}};
constexpr std::int64_t kRows = 146, kResponse = 70, kSpoiled = 100;
constexpr test::Heads kHeads{2, 1, 64};

class PrefixAttentionCudaMutation : public testing::TestWithParam<Mutation> {
 protected:
  ~PrefixAttentionCudaMutation() override { emulated::gpu().options = {}; }

  test::DeviceResult run(const DeviceProblem& problem) {
    DeviceContext device;
    const AttentionPlan plan(test::forest_of(kTree));
    return test::run(device, plan, problem, GetParam().ops);
  }

  /// The end of the first response, NaN in `d_out` and `v` only or everywhere.
  static DeviceProblem spoiled(bool everywhere) {
    auto problem = test::device_problem(kRows, kRows, kHeads);
    const auto fill = [&](std::vector<BF16>& x, std::int64_t heads) {
      std::fill_n(x.begin() + kSpoiled * heads * 64, (137 - kSpoiled) * heads * 64, BF16{0x7fc0});
    };
    fill(problem.d_out, 2);
    fill(problem.v, 1);
    if (everywhere) fill(problem.q, 2), fill(problem.k, 1);
    return problem;
  }

  std::string what_notices_it() {
    const auto problem = test::device_problem(kRows, kRows, kHeads);
    try {
      // Queries that see nothing and keys that nobody sees: blocks that walk over no tile.
      DeviceContext device;
      const std::vector<std::int64_t> space_rows{6};
      const std::vector<PlanRectangle> rectangles{{0, 3, 0, 0, 3, Mask::kCausal}};
      test::run(device, AttentionPlan(5, space_rows, rectangles),
                test::device_problem(5, 6, kHeads), GetParam().ops);

      const auto clean = run(problem);
      const auto expected = test::expectation(problem, reference::visibility(kTree));
      const auto [out, lse, dq, dk, dv] = test::errors(clean, expected);
      const auto& bounds = expected.bounds;
      const bool right = out <= bounds.out && lse <= bounds.lse && dq <= bounds.dq &&
                         dk <= bounds.dk && dv <= bounds.dv;
      if (!right) return "wrong";

      // Rows before the garbage.
      const auto begin_differs = [&](const auto& a, const auto& b) {
        return !std::equal(a.begin(), a.begin() + kSpoiled * 2 * 2 * 64, b.begin());
      };
      bool leaks = false;
      for (const bool everywhere : {false, true}) {
        const auto garbage = run(spoiled(everywhere));
        leaks =
            leaks || begin_differs(clean.out, garbage.out) || begin_differs(clean.dq, garbage.dq);
      }
      // Keys behind garbage among the queries.
      auto early = problem;
      std::fill_n(early.d_out.begin() + kResponse * 2 * 64, 20 * 2 * 64, BF16{0x7fc0});
      const auto garbage = run(early);
      const auto begin = (kResponse + 20) * 2 * 64;
      leaks = leaks ||
              !std::equal(clean.dv.begin() + begin, clean.dv.end(), garbage.dv.begin() + begin);
      return leaks ? "leaks" : "nothing";
    } catch (const DeviceError&) {
      return "stopped";
    }
  }
};

TEST_P(PrefixAttentionCudaMutation, IsNoticed) {
  auto& options = emulated::gpu().options;
  for (const std::uint64_t seed : {1, 2, 3}) {
    for (const auto schedule : {emulated::Schedule::kRandom, emulated::Schedule::kRunAhead}) {
      options.seed = seed;
      options.schedule = schedule;
      EXPECT_EQ(what_notices_it(), GetParam().noticed_by) << "seed " << seed;
      // What results show does not depend on the order of threads.
      if (GetParam().noticed_by != "stopped") return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mutations, PrefixAttentionCudaMutation, testing::ValuesIn(mutations()),
                         [](const auto& made_for) { return std::string(made_for.param.name); });

}  // namespace
}  // namespace coppice
