#pragma once
// What the tests of layers share: the two CPU dtypes as a parameter, computed tolerances, a grid of
// one rank, and views that are some columns of a wider matrix.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "parallel/parallel_context.hpp"
#include "parallel/parameter.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

/// A case of each test for f32 and for f64.
class LayerTest : public testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  ExecContext& ctx() { return test_.ctx(); }
  ParameterStorage storage() { return {test_.memory(), dtype()}; }
  TestContext test_;
};

inline std::string dtype_name(const testing::TestParamInfo<DType>& info) {
  return info.param == DType::kF64 ? "CpuF64" : "CpuF32";
}

#define COPPICE_LAYER_TEST(suite)                                                      \
  class suite : public ::coppice::test::LayerTest {};                                  \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::Values(DType::kF32, DType::kF64), \
                           ::coppice::test::dtype_name)

/// c eps sqrt(K) with the project's c = 8: what summing K products may lose, relative.
inline double tolerance(DType dtype, std::int64_t terms = 1) {
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
