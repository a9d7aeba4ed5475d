// Barriers, waits and events taken out of the layers' and the optimizer's CUDA code, kept as tests:
// copies of the sources that lack one (mutations.cmake). The emulated device must stop a kernel
// that lacks a barrier on every seed and in both orders of threads; what lacks an event or a wait
// of the host goes wrong under some seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/runtime.hpp"
#include "core/cuda/upload.hpp"
#include "layers/rms_norm.hpp"
#include "layers/rows.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "optim/grad_norm.hpp"
#include "support/test_context.hpp"

namespace coppice {

// What each op's source defines, in the namespace of a mutation.
#define COPPICE_DECLARE_norm                                                             \
  void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x,                         \
                            std::optional<ConstTensorView> delta, ConstTensorView gamma, \
                            double epsilon, std::optional<TensorView> sum, TensorView y, \
                            TensorView rstd);                                            \
  void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,     \
                         ConstTensorView rstd, ConstTensorView dy,                       \
                         std::optional<ConstTensorView> residual_grad, TensorView dx,    \
                         std::optional<TensorView> dgamma);
#define COPPICE_DECLARE_head                                                               \
  void logprob_statistics(ExecContext& ctx, const LogitChunk& chunk);                      \
  void logprob_gradient(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk, \
                        std::span<const double> c, std::span<const double> e);
#define COPPICE_DECLARE_bias \
  void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias);
#define COPPICE_DECLARE_squares \
  double sum_of_squares(ExecContext& ctx, std::span<const ConstTensorView> runs);
#define COPPICE_DECLARE_upload                                                             \
  const std::byte* upload_bytes(ExecContext& ctx, ScratchScope& scratch, const void* from, \
                                std::int64_t bytes);
#define COPPICE_MUTATION(name, op) \
  namespace mutated_##name {       \
    COPPICE_DECLARE_##op           \
  }
#include "mutations/list.inc"
#undef COPPICE_MUTATION

namespace {

using test::kCudaDevice;
using test::TestContext;

/// Throws or returns false where something went wrong.
using Run = std::function<bool()>;

// Vectors for a warp and for a block, several for each.
Run run_norm(decltype(&cuda::add_rms_norm_forward) forward,
             decltype(&cuda::rms_norm_backward) backward) {
  return [=] {
    TestContext test(kCudaDevice);
    for (const std::int64_t width : {72, 1032}) {
      const Shape shape{11, width};
      const Tensor x = test.random(DType::kBF16, shape, "x");
      const Tensor gamma = test.random(DType::kBF16, {width}, "gamma");
      const Tensor dy = test.random(DType::kBF16, shape, "dy");
      Tensor y = test.zeros(DType::kBF16, shape), dx = test.zeros(DType::kBF16, shape);
      Tensor rstd = test.zeros(DType::kF32, {11}), dgamma = test.zeros(DType::kF32, {width});
      forward(test.ctx(), x, std::nullopt, gamma, 1e-5, std::nullopt, y, rstd);
      backward(test.ctx(), x, gamma, rstd, dy, std::nullopt, dx, dgamma);
      test.stream().synchronize();
    }
    return true;
  };
}

// Two runs of columns for a block's threads.
Run run_head(decltype(&cuda::logprob_statistics) statistics,
             decltype(&cuda::logprob_gradient) gradient) {
  return [=] {
    constexpr std::int64_t kRows = 3, kWidth = 2560;
    TestContext test(kCudaDevice);
    Tensor logits = test.random(DType::kF32, {kRows, kWidth}, "logits");
    Tensor row_statistics = test.zeros(DType::kF64, {kRows, 3});
    const TensorView all = logits;
    const LogitChunk chunk{.logits = all,
                           .gradient = TensorView(all.bytes(), DType::kBF16, all.shape(),
                                                  Shape({2 * kWidth, 1}), all.device()),
                           .statistics = row_statistics,
                           .row_begin = 0,
                           .first_token = 0,
                           .temperature = 1.0};
    HeadEdges edges;
    edges.rows = {0, 1, 2};
    edges.edge_begin = {0, 1, 2, 3};
    edges.targets = {5, 2559, 0};
    const std::vector<double> c{1, -1, 0.5}, e{0, 0.1, 0.2};
    statistics(test.ctx(), chunk);
    gradient(test.ctx(), edges, chunk, c, e);
    test.stream().synchronize();
    return true;
  };
}

Run run_bias(decltype(&cuda::bias_backward) backward) {
  return [=] {
    TestContext test(kCudaDevice);
    const Tensor dy = test.random(DType::kBF16, {19, 40}, "dy");
    Tensor dbias = test.zeros(DType::kF32, {40});
    backward(test.ctx(), dy, dbias);
    test.stream().synchronize();
    return true;
  };
}

Run run_squares(decltype(&cuda::sum_of_squares) squares) {
  return [=] {
    TestContext test(kCudaDevice);
    const Tensor x = test.filled(DType::kF32, {5000}, 2.0);
    const std::vector<ConstTensorView> runs{x};
    return squares(test.ctx(), runs) == 20'000;
  };
}

// More than the staging holds at once, twice; then one span that it must grow for.
Run run_upload(decltype(&cuda::upload_bytes) upload) {
  return [=] {
    TestContext test(kCudaDevice);
    ScratchScope scratch(test.scratch());
    std::vector<std::vector<std::int32_t>> sent;
    std::vector<const std::byte*> arrived;
    for (int i = 0; i < 14; ++i) {
      std::vector<std::int32_t> values(i == 12 ? 200'000 : 16'000);
      std::iota(values.begin(), values.end(), i * 1'000'000);
      sent.push_back(values);
      const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(values[0]));
      arrived.push_back(upload(test.ctx(), scratch, values.data(), bytes));
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      std::vector<std::int32_t> back(sent[i].size());
      cuda::copy(test.stream().state(), {cuda::CopyKind::kToHost, back.data(), arrived[i],
                                         static_cast<std::int64_t>(back.size() * sizeof(back[0]))});
      if (back != sent[i]) return false;
    }
    return true;
  };
}

#define COPPICE_RUN_norm(from) run_norm(from::add_rms_norm_forward, from::rms_norm_backward)
#define COPPICE_RUN_head(from) run_head(from::logprob_statistics, from::logprob_gradient)
#define COPPICE_RUN_bias(from) run_bias(from::bias_backward)
#define COPPICE_RUN_squares(from) run_squares(from::sum_of_squares)
#define COPPICE_RUN_upload(from) run_upload(from::upload_bytes)

struct Mutation {
  const char* name;
  const char* op;
  Run run;
};

std::vector<Mutation> mutations() {
  return {
#define COPPICE_MUTATION(name, op) {#name, #op, COPPICE_RUN_##op(mutated_##name)},
#include "mutations/list.inc"
#undef COPPICE_MUTATION
  };
}
std::vector<Mutation> originals() {
  return {{"norm", "norm", COPPICE_RUN_norm(cuda)},
          {"head", "head", COPPICE_RUN_head(cuda)},
          {"bias", "bias", COPPICE_RUN_bias(cuda)},
          {"squares", "squares", COPPICE_RUN_squares(cuda)},
          {"upload", "upload", COPPICE_RUN_upload(cuda)}};
}

class KernelCudaMutation : public testing::TestWithParam<Mutation> {
 protected:
  ~KernelCudaMutation() override { emulated::gpu().options = {}; }

  static constexpr std::uint64_t kSeeds = 12;

  /// How many of the runs go wrong, each under another seed or order of threads.
  std::uint64_t noticed(std::uint64_t seeds) const {
    std::uint64_t count = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      for (const auto schedule : {emulated::Schedule::kRandom, emulated::Schedule::kRunAhead}) {
        emulated::gpu().options.seed = seed;
        emulated::gpu().options.schedule = schedule;
        try {
          count += GetParam().run() ? 0 : 1;
        } catch (const DeviceError&) {
          ++count;
        }
      }
    }
    return count;
  }
};
class KernelCudaOriginal : public KernelCudaMutation {};

TEST_P(KernelCudaMutation, IsNoticed) {
  if (std::string(GetParam().op) == "upload") {
    EXPECT_GE(noticed(kSeeds), kSeeds / 2);
  } else {
    EXPECT_EQ(noticed(3), 2 * 3U);
  }
}

TEST_P(KernelCudaOriginal, IsLetPass) { EXPECT_EQ(noticed(3), 0U); }

const auto name_of = [](const auto& made_for) { return std::string(made_for.param.name); };
INSTANTIATE_TEST_SUITE_P(Mutations, KernelCudaMutation, testing::ValuesIn(mutations()), name_of);
INSTANTIATE_TEST_SUITE_P(Originals, KernelCudaOriginal, testing::ValuesIn(originals()), name_of);

}  // namespace
}  // namespace coppice
