#include "attention/cuda/prefix_attention_call.hpp"

#include "core/cuda/upload.hpp"

namespace coppice::cuda {
namespace {

void check_alignment(ConstTensorView x, const char* name) {
  const auto& strides = x.strides();
  COPPICE_CHECK(x.numel() == 0 || (reinterpret_cast<std::uintptr_t>(x.bytes()) % 16 == 0 &&
                                   strides[0] % 8 == 0 && strides[1] % 8 == 0),
                "{}: rows {} and heads {} elements apart (kernels copy 16 bytes at a time)", name,
                strides[0], strides[1]);
}

}  // namespace

HeadRows<const BF16> head_rows(ConstTensorView x, const char* name) {
  check_alignment(x, name);
  return {x.data<BF16>(), x.strides()[0], x.strides()[1]};
}

HeadRows<BF16> head_rows(TensorView x, const char* name) {
  check_alignment(x, name);
  return {x.data<BF16>(), x.strides()[0], x.strides()[1]};
}

std::vector<SpaceView> space_views(std::span<const KeySpace> spaces) {
  std::vector<SpaceView> views;
  for (const auto& [k, v] : spaces) views.push_back({head_rows(k, "k"), head_rows(v, "v")});
  return views;
}

std::vector<char> learning(std::span<const KeySpaceGrad> grads) {
  std::vector<char> learns;
  for (const auto& grad : grads) learns.push_back(grad.dk.bytes() != nullptr ? 1 : 0);
  return learns;
}

std::vector<SpaceGradView> space_grad_views(std::span<const KeySpaceGrad> grads) {
  std::vector<SpaceGradView> views;
  for (const auto& [dk, dv, beta] : grads) {
    if (dk.bytes() == nullptr) {
      views.push_back({});
      continue;
    }
    check_alignment(dk, "dk");
    check_alignment(dv, "dv");
    views.push_back({{dk.bytes(), dk.strides()[0], dk.strides()[1]},
                     {dv.bytes(), dv.strides()[0], dv.strides()[1]},
                     dk.dtype() == DType::kF32 ? 1 : 0,
                     beta != 0.0 ? 1 : 0});
  }
  return views;
}

void throw_no_kernel(std::int64_t head_dim) {
  throw ContractError(
      fmt::format("head_dim = {} has no attention kernel on CUDA (a kernel is compiled for each of "
                  "64, 96 and 128). Use one of these, or the CPU.",
                  head_dim));
}

void DeviceLists::upload(ExecContext& ctx, ScratchScope& scratch) {
  on_device_ = upload_bytes(ctx, scratch, bytes_.data(), padded(std::ssize(bytes_)));
}

std::int64_t DeviceLists::leased_bytes(std::int64_t bytes) {
  return bytes == 0 ? 0 : Arena::leased_bytes(DType::kI64, {padded(bytes) / 8});
}

}  // namespace coppice::cuda
