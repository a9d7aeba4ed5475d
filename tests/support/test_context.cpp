#include "support/test_context.hpp"

#include <cmath>
#include <cstring>

#include "core/convert.hpp"

namespace coppice::test {
namespace {

double element(DType dtype, const std::byte* at) {
  if (dtype == DType::kBF16) return to_f32(*reinterpret_cast<const BF16*>(at));
  return visit_float(dtype, [&]<class T>(TypeTag<T>) {
    return static_cast<double>(*reinterpret_cast<const T*>(at));
  });
}

void set_element(DType dtype, std::byte* at, double value) {
  if (dtype == DType::kBF16) {
    *reinterpret_cast<BF16*>(at) = to_bf16(value);
    return;
  }
  visit_float(dtype,
              [&]<class T>(TypeTag<T>) { *reinterpret_cast<T*>(at) = static_cast<T>(value); });
}

// Calls f(pointer to element, index) for every element in row-major order.
template <class View, class F>
void for_each_element(const View& view, F&& f) {
  const Shape& shape = view.shape();
  const auto size = size_of(view.dtype());
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      offset += rest % shape[axis] * view.strides()[axis];
      rest /= shape[axis];
    }
    f(view.bytes() + offset * size, i);
  }
}

template <class F>
Tensor made(Memory& memory, DType dtype, Shape shape, F&& value) {
  Tensor tensor(memory, dtype, shape, "test");
  for_each_element(tensor.view(),
                   [&](std::byte* at, std::int64_t i) { set_element(dtype, at, value(i)); });
  return tensor;
}

}  // namespace

Tensor TestContext::random(DType dtype, Shape shape, std::string_view name, double scale) {
  const RandomStream stream(1, name);
  return made(memory_, dtype, shape, [&](std::int64_t i) {
    // Rounded to f32 first: an f64 case then checks the f32 case on the very same numbers.
    return static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(i)));
  });
}

Tensor TestContext::zeros(DType dtype, Shape shape) { return filled(dtype, shape, 0.0); }

Tensor TestContext::filled(DType dtype, Shape shape, double value) {
  return made(memory_, dtype, shape, [&](std::int64_t) { return value; });
}

Tensor TestContext::from(DType dtype, Shape shape, const std::vector<double>& values) {
  COPPICE_CHECK(shape.numel() == std::ssize(values), "{} values for {}", values.size(), shape);
  return made(memory_, dtype, shape,
              [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

std::vector<double> values_of(ConstTensorView tensor) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(tensor.numel()));
  for_each_element(tensor, [&](const std::byte* at, std::int64_t) {
    values.push_back(element(tensor.dtype(), at));
  });
  return values;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  COPPICE_CHECK(a.size() == b.size(), "{} values compared with {}", a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

bool bit_equal(ConstTensorView a, ConstTensorView b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  std::vector<const std::byte*> elements;
  for_each_element(a, [&](const std::byte* at, std::int64_t) { elements.push_back(at); });
  bool equal = true;
  for_each_element(b, [&](const std::byte* at, std::int64_t i) {
    equal = equal && std::memcmp(elements[static_cast<std::size_t>(i)], at,
                                 static_cast<std::size_t>(size_of(a.dtype()))) == 0;
  });
  return equal;
}

}  // namespace coppice::test
