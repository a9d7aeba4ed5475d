#pragma once
// What the tests of layers share: the dtypes of the CPU and of a CUDA device as a parameter,
// computed tolerances and a grid of one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/build_config.hpp"
#include "parallel/parallel_context.hpp"
#include "parallel/parameter.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

/// The CPU computes in f32 and f64, a CUDA device in bf16.
inline Device device_for(DType dtype) { return dtype == DType::kBF16 ? kCudaDevice : Device{}; }

/// A case of each test for f32 and for f64, and for bf16 on a CUDA device.
class LayerTest : public testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  ExecContext& ctx() { return test_.ctx(); }
  ParameterStorage storage() { return {test_.memory(), dtype()}; }
  TestContext test_{device_for(GetParam())};
};

inline std::string dtype_name(const testing::TestParamInfo<DType>& info) {
  switch (info.param) {
    case DType::kF64:
      return "CpuF64";
    case DType::kBF16:
      return "CudaBf16";
    default:
      return "CpuF32";
  }
}

/// A build without a backend has no cases for it.
inline std::vector<DType> every_backend() {
  if (build::kWithCuda) return {DType::kF32, DType::kF64, DType::kBF16};
  return {DType::kF32, DType::kF64};
}

#define COPPICE_LAYER_TEST(suite)                                                      \
  class suite : public ::coppice::test::LayerTest {};                                  \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::Values(DType::kF32, DType::kF64), \
                           ::coppice::test::dtype_name)

/// The same with a case for each backend, for ops that have a body on a CUDA device.
#define COPPICE_BACKENDS_TEST(suite)                                                             \
  class suite : public ::coppice::test::LayerTest {};                                            \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(::coppice::test::every_backend()), \
                           ::coppice::test::dtype_name)

/// c eps sqrt(K) with the project's c = 8: what summing K products may lose, relative. Sums of bf16
/// are f32, so there it is that and twice the most that rounding a result can do, 2^-8.
inline double tolerance(DType dtype, std::int64_t terms = 1) {
  if (dtype == DType::kBF16) return 2 * 0x1p-8 + tolerance(DType::kF32, terms);
  const double epsilon = dtype == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                              : std::numeric_limits<float>::epsilon();
  return 8 * epsilon * std::sqrt(static_cast<double>(std::max<std::int64_t>(terms, 1)));
}

/// A grid of one rank.
struct OneRank {
  std::unique_ptr<Communicator> self = make_self_communicator();
  ParallelContext context{*self, *self, *self};
};

/// Every parameter's value drawn at random by its name, every gradient set to `grad`.
inline void fill(const std::vector<Parameter*>& parameters, double scale, double grad = 0.0) {
  for (Parameter* parameter : parameters) {
    const RandomStream stream(7, parameter->name);
    visit_float(parameter->value.dtype(), [&]<class T>(TypeTag<T>) {
      for (std::int64_t i = 0; i < parameter->value.numel(); ++i) {
        parameter->value.view().data<T>()[i] = static_cast<T>(
            static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(i))));
        if (parameter->grad.has_value()) parameter->grad.view().data<T>()[i] = static_cast<T>(grad);
      }
    });
  }
}

}  // namespace coppice::test
