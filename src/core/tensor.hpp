#pragma once
// Tensors and views of them. A Tensor owns its bytes or leases them from an Arena, and moves only;
// a view borrows. Constness is deep and in the type: ConstTensorView cannot be written through.
#include <concepts>
#include <cstddef>
#include <optional>
#include <string_view>

#include "core/dtype.hpp"
#include "core/memory.hpp"
#include "core/shape.hpp"

namespace coppice {

/// What two tensors must share to be combined element by element.
struct TensorSpec {
  DType dtype;
  Shape shape;
  Device device;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// Borrowed elements. `Byte` is std::byte or const std::byte.
///
/// Layout    row major; the last axis is contiguous; every other axis has its own stride, counted
///           in elements, so that a view may be some columns of a wider matrix
template <class Byte>
class BasicTensorView {
 public:
  BasicTensorView() = default;
  BasicTensorView(Byte* data, DType dtype, Shape shape, Device device = {});
  BasicTensorView(Byte* data, DType dtype, Shape shape, Shape strides, Device device);
  // A mutable view can always be read.
  template <class Other>
  requires(std::same_as<Byte, const std::byte>&& std::same_as<Other, std::byte>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT: implicit on purpose
      : BasicTensorView(other.bytes(), other.dtype(), other.shape(), other.strides(),
                        other.device()) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  const Device& device() const { return device_; }
  TensorSpec spec() const { return {dtype_, shape_, device_}; }
  std::int64_t numel() const { return shape_.numel(); }
  bool is_contiguous() const;
  Byte* bytes() const { return data_; }

  /// Elements as T; T must be the view's dtype.
  template <class T>
  auto data() const {
    COPPICE_CHECK(kDTypeOf<T> == dtype_, "a tensor of {} read as {}", name_of(dtype_),
                  name_of(kDTypeOf<T>));
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data_);
  }

  /// `count` entries of axis 0 from `begin`.
  BasicTensorView rows(std::int64_t begin, std::int64_t count) const;
  /// `count` entries of the last axis from `begin`.
  BasicTensorView columns(std::int64_t begin, std::int64_t count) const;
  /// The same elements in another shape. The last axis may be split or, where the outer axes allow
  /// it, merged; anything else needs a contiguous view.
  BasicTensorView reshape(Shape shape) const;

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_{0};
  Shape strides_{1};
  Device device_;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// A view of host memory that something else owns (a vector, a mapped file).
template <class T>
TensorView host_view(T* data, Shape shape) {
  return {reinterpret_cast<std::byte*>(data), kDTypeOf<T>, shape};
}
template <class T>
ConstTensorView host_view(const T* data, Shape shape) {
  return {reinterpret_cast<const std::byte*>(data), kDTypeOf<T>, shape};
}

/// Owns a Buffer, or leases from an Arena (then it must not outlive the arena's reset).
class Tensor {
 public:
  Tensor() = default;
  /// Owning. `name` is the line of the memory account that it counts in.
  Tensor(Memory& memory, DType dtype, Shape shape, std::string_view name);
  /// Leased; made by Arena.
  explicit Tensor(TensorView leased) : view_(leased) {}
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;

  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  operator TensorView() { return view_; }             // NOLINT: implicit on purpose
  operator ConstTensorView() const { return view_; }  // NOLINT: implicit on purpose

  const Shape& shape() const { return view_.shape(); }
  DType dtype() const { return view_.dtype(); }
  TensorSpec spec() const { return view_.spec(); }
  std::int64_t numel() const { return view_.numel(); }
  std::int64_t size_bytes() const { return numel() * size_of(dtype()); }
  /// False for a default-made tensor.
  bool has_value() const { return view_.bytes() != nullptr; }

 private:
  Buffer buffer_;
  TensorView view_;
};

}  // namespace coppice
