// What cuBLASLt trusts its caller with, under the emulated library: each case is one mistake that a
// GPU would answer with wrong numbers, a fault or another tensor's damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/cuda/cublaslt.hpp"
#include "core/gemm.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using cuda::ProductOperands;
using cuda::ProductShape;
using test::kCudaDevice;
using test::TestContext;
using testing::HasSubstr;
using testing::ThrowsMessage;

class EmulatedProducts : public testing::Test {
 protected:
  // d [4, 2] = a [4, 3] b [3, 2], column-major, in blocks of just that size.
  ProductShape shape_{.m = 4,
                      .n = 2,
                      .k = 3,
                      .a_leading = 4,
                      .b_leading = 3,
                      .d_leading = 4,
                      .a_transposed = false,
                      .b_transposed = false,
                      .input = DType::kBF16,
                      .output = DType::kF32,
                      .a_alignment = 16,
                      .b_alignment = 16,
                      .d_alignment = 16};
  TestContext test_{kCudaDevice};
  Tensor a_ = test_.filled(DType::kBF16, {12}, 1.0);
  Tensor b_ = test_.filled(DType::kBF16, {6}, 1.0);
  Tensor d_ = test_.filled(DType::kF32, {8}, 1.0);
  Tensor workspace_ = test_.zeros(DType::kF32, {1024});
  ProductOperands operands_{.a = a_.view().bytes(),
                            .b = b_.view().bytes(),
                            .d = d_.view().bytes(),
                            .alpha = 1.0,
                            .beta = 0.0,
                            .workspace = workspace_.view().bytes()};

  void run() {
    auto& stream = test_.stream().state();
    const auto library = cuda::begin_product_library(stream);
    const auto plan = cuda::plan_product(*library, shape_);
    cuda::multiply(stream, *library, *plan, operands_);
    test_.stream().synchronize();
  }
  void expect_refused(const char* because) {
    EXPECT_THAT([&] { run(); }, ThrowsMessage<DeviceError>(HasSubstr(because)));
  }
};

TEST_F(EmulatedProducts, TheSoundProductIsComputed) {
  run();
  EXPECT_EQ(test::values_of(d_), std::vector<double>(8, 3.0));
}

TEST_F(EmulatedProducts, ALeadingDimensionBelowTheRowsIsRefused) {
  shape_.a_leading = 3;
  expect_refused("leading dimension of 3");
}

TEST_F(EmulatedProducts, ALeadingDimensionThatLeavesTheBlockIsRefused) {
  shape_.b_leading = 4;
  expect_refused("a product's b reaches 14 bytes");
  shape_.b_leading = 3;
  shape_.d_leading = 5;
  expect_refused("a product's d reaches 36 bytes");
}

TEST_F(EmulatedProducts, ATransposeThatDoesNotFitTheLeadingDimensionIsRefused) {
  shape_.a_transposed = true;  // a is then [3, 4], with a leading dimension of 4: one row too many
  expect_refused("a product's a reaches 30 bytes");
}

TEST_F(EmulatedProducts, AnAlignmentThatTheAddressesDoNotHaveIsRefused) {
  shape_.a_leading = 3, shape_.m = 3;
  operands_.a = a_.view().bytes() + 2;
  expect_refused("not a multiple of 16");
  shape_.a_alignment = 2;
  run();
}

TEST_F(EmulatedProducts, TypesThatTheLibraryDoesNotPairAreRefused) {
  shape_.input = DType::kF32;
  shape_.output = DType::kBF16;
  expect_refused("no algorithm");
  shape_.input = DType::kF64;
  shape_.output = DType::kF64;
  expect_refused("no algorithm");
}

TEST_F(EmulatedProducts, AnEmptyProductIsRefused) {
  shape_.k = 0;
  expect_refused("not empty");
}

TEST_F(EmulatedProducts, ABiasIsAddedToEveryColumnAndCheckedAsTheMatricesAre) {
  const Tensor bias = test_.from(DType::kF32, {5}, {10, 20, 30, 40, 50});
  shape_.with_bias = true;
  expect_refused("a product without a bias was planned with one");
  operands_.bias = bias.view().bytes() + 4;
  expect_refused("bias lies at");
  operands_.bias = bias.view().bytes() + 16;
  expect_refused("a product's bias reaches 16 bytes");
  operands_.bias = bias.view().bytes();
  run();
  EXPECT_EQ(test::values_of(d_), std::vector<double>({13, 23, 33, 43, 13, 23, 33, 43}));
  shape_.with_bias = false;
  expect_refused("a product with a bias was planned without one");
}

TEST_F(EmulatedProducts, AWorkspaceThatIsMissingUnalignedOrTooSmallIsRefused) {
  operands_.workspace = nullptr;
  expect_refused("workspace");
  operands_.workspace = workspace_.view().bytes() + 64;
  expect_refused("not a multiple of 256");
  operands_.workspace = d_.view().bytes();
  expect_refused("workspace reaches 1024 bytes");
}

TEST_F(EmulatedProducts, AnOutputThatIsAlsoAnInputIsRefused) {
  shape_.input = shape_.output = DType::kBF16;
  operands_.d = a_.view().bytes();
  expect_refused("a and d share memory");
}

TEST_F(EmulatedProducts, AMatrixOfTheHostIsRefused) {
  std::vector<BF16> host(12);
  shape_.a_alignment = 2;
  operands_.a = host.data();
  expect_refused("not in the device's memory");
}

TEST_F(EmulatedProducts, AWorkspaceThatIsAnotherTensorsDestroysIt) {
  const Tensor other = test_.filled(DType::kF32, {1024}, 1.0);
  operands_.workspace = const_cast<std::byte*>(other.view().bytes());
  run();
  EXPECT_NE(test::values_of(other)[0], 1.0);
}

TEST_F(EmulatedProducts, GemmTellsTheAlignmentThatItsViewsHave) {
  // Columns from 1 on begin at 2 bytes of a row of 18. Seen red with 256 for every alignment in
  // cuda/gemm.cpp.
  const Tensor wide = test_.filled(DType::kBF16, {6, 9}, 1.0);
  Tensor c = test_.zeros(DType::kF32, {6, 6});
  gemm(test_.ctx(), wide.view().columns(1, 6), wide.view().columns(2, 6), c);
  EXPECT_EQ(test::values_of(c), std::vector<double>(36, 6.0));
}

}  // namespace
}  // namespace coppice
