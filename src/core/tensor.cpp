#include "core/tensor.hpp"

namespace coppice {
namespace {

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides = strides.with(axis, stride);
    stride *= shape[axis];
  }
  return strides;
}

}  // namespace

template <class Byte>
BasicTensorView<Byte>::BasicTensorView(Byte* data, DType dtype, Shape shape, Device device)
    : BasicTensorView(data, dtype, shape, contiguous_strides(shape), device) {}

template <class Byte>
BasicTensorView<Byte>::BasicTensorView(Byte* data, DType dtype, Shape shape, Shape strides,
                                       Device device)
    : data_(data), dtype_(dtype), shape_(shape), strides_(strides), device_(device) {
  COPPICE_CHECK(shape.rank() == strides.rank(), "shape {} with strides {}", shape, strides);
  COPPICE_CHECK(shape.rank() == 0 || strides.back() == 1, "the last axis must be contiguous");
}

template <class Byte>
bool BasicTensorView<Byte>::is_contiguous() const {
  std::int64_t stride = 1;
  for (int axis = shape_.rank() - 1; axis >= 0; --axis) {
    if (shape_[axis] != 1 && strides_[axis] != stride) return numel() == 0;
    stride *= shape_[axis];
  }
  return true;
}

template <class Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::rows(std::int64_t begin, std::int64_t count) const {
  COPPICE_CHECK(shape_.rank() > 0 && begin >= 0 && count >= 0 && begin + count <= shape_[0],
                "rows {}+{} of {}", begin, count, shape_);
  return {data_ + begin * strides_[0] * size_of(dtype_), dtype_, shape_.with(0, count), strides_,
          device_};
}

template <class Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::columns(std::int64_t begin, std::int64_t count) const {
  COPPICE_CHECK(shape_.rank() > 0 && begin >= 0 && count >= 0 && begin + count <= shape_.back(),
                "columns {}+{} of {}", begin, count, shape_);
  return {data_ + begin * size_of(dtype_), dtype_, shape_.with(shape_.rank() - 1, count), strides_,
          device_};
}

template <class Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::reshape(Shape shape) const {
  COPPICE_CHECK(shape.numel() == numel(), "{} reshaped to {}", shape_, shape);
  if (is_contiguous()) return {data_, dtype_, shape, device_};
  // Rows with a gap between them: axis 0 stays, what is behind it is contiguous on both sides.
  COPPICE_CHECK(shape_.rank() >= 1 && shape.rank() >= 1 && shape[0] == shape_[0] &&
                    (shape_[0] == 0 || rows(0, 1).is_contiguous()),
                "{} with strides {} reshaped to {}", shape_, strides_, shape);
  Shape strides = contiguous_strides(shape);
  return {data_, dtype_, shape, strides.with(0, strides_[0]), device_};
}

template class BasicTensorView<std::byte>;
template class BasicTensorView<const std::byte>;

Tensor::Tensor(Memory& memory, DType dtype, Shape shape, std::string_view name)
    : buffer_(memory.allocate(shape.numel() * size_of(dtype), name, Lifetime::kRun)),
      view_(buffer_.data(), dtype, shape, memory.device()) {}

}  // namespace coppice
