#include "support/test_context.hpp"
#include "core/build_config.hpp"

#include <cmath>
#include <cstring>

#include "core/convert.hpp"
#include "core/cuda/runtime.hpp"

namespace coppice::test {
namespace {

// From the first to behind the last element of a view, in elements.
std::int64_t span_of(ConstTensorView view) {
  if (view.numel() == 0) return 0;
  std::int64_t last = 0;
  for (int axis = 0; axis < view.shape().rank(); ++axis) {
    last += (view.shape()[axis] - 1) * view.strides()[axis];
  }
  return last + 1;
}

// The bytes that a view spans, where the host can read them: in place, or copied from the device.
class HostBytes {
 public:
  explicit HostBytes(ConstTensorView view) : data_(view.bytes()) {
    if (view.device().kind == DeviceKind::kCpu) return;
    if constexpr (build::kWithCuda) {
      copy_.resize(static_cast<std::size_t>(span_of(view) * size_of(view.dtype())));
      cuda::synchronize_device(view.device());
      Stream stream(view.device());
      cuda::copy(stream.state(), {cuda::CopyKind::kToHost, copy_.data(), view.bytes(),
                                  static_cast<std::int64_t>(copy_.size())});
      data_ = copy_.data();
    }
  }
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_;
  std::vector<std::byte> copy_;
};

// Calls f(offset in bytes, index) for every element in row-major order.
template <class F>
void for_each_element(ConstTensorView view, F&& f) {
  const Shape& shape = view.shape();
  const auto size = size_of(view.dtype());
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      offset += rest % shape[axis] * view.strides()[axis];
      rest /= shape[axis];
    }
    f(offset * size, i);
  }
}

void store(DType dtype, std::byte* element, double value) {
  switch (dtype) {
    case DType::kF32:
      *reinterpret_cast<float*>(element) = static_cast<float>(value);
      return;
    case DType::kF64:
      *reinterpret_cast<double*>(element) = value;
      return;
    case DType::kBF16:
      *reinterpret_cast<BF16*>(element) = to_bf16(value);
      return;
    case DType::kI32:
      *reinterpret_cast<std::int32_t*>(element) = static_cast<std::int32_t>(value);
      return;
    case DType::kF16:
    case DType::kI64:
      break;
  }
  COPPICE_CHECK(false, "tests hold no tensors of {}", name_of(dtype));
}

double load(DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(*reinterpret_cast<const float*>(element));
    case DType::kF64:
      return *reinterpret_cast<const double*>(element);
    case DType::kBF16:
      return static_cast<double>(to_f32(*reinterpret_cast<const BF16*>(element)));
    case DType::kI32:
      return *reinterpret_cast<const std::int32_t*>(element);
    case DType::kF16:
    case DType::kI64:
      break;
  }
  COPPICE_CHECK(false, "tests hold no tensors of {}", name_of(dtype));
}

template <class F>
Tensor made(ExecContext& ctx, DType dtype, Shape shape, F&& value) {
  Tensor tensor(ctx.memory, dtype, shape, "test");
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.size_bytes()));
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    store(dtype, bytes.data() + i * size_of(dtype), value(i));
  }
  if (ctx.device().kind == DeviceKind::kCpu) {
    std::copy(bytes.begin(), bytes.end(), tensor.view().bytes());
  } else if constexpr (build::kWithCuda) {
    cuda::copy(ctx.stream.state(), {cuda::CopyKind::kToDevice, tensor.view().bytes(), bytes.data(),
                                    tensor.size_bytes()});
  }
  return tensor;
}

}  // namespace

std::string Backend::name() const {
  std::string dtype_name(name_of(dtype));
  dtype_name[0] = static_cast<char>(std::toupper(dtype_name[0]));
  return (device.kind == DeviceKind::kCpu ? "Cpu" : "Cuda") + dtype_name;
}

std::vector<Backend> backends() {
  std::vector<Backend> all = {{Device{}, DType::kF32}, {Device{}, DType::kF64}};
  for (const Backend& backend : cuda_backends()) all.push_back(backend);
  return all;
}

std::vector<Backend> cuda_backends() {
  if (!build::kWithCuda) return {};
  return {{kCudaDevice, DType::kBF16}};
}

TestContext::TestContext(Device device, int threads)
    : stream_(device),
      memory_(device.kind == DeviceKind::kCpu ? Memory(device) : Memory(stream_)),
      ctx_{stream_, memory_, scratch_, threads} {}

Tensor TestContext::random(DType dtype, Shape shape, std::string_view name, double scale) {
  const RandomStream stream(1, name);
  return made(ctx_, dtype, shape, [&](std::int64_t i) {
    // Rounded to f32 first: an f64 case then checks the f32 case on the very same numbers.
    return static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(i)));
  });
}

Tensor TestContext::zeros(DType dtype, Shape shape) { return filled(dtype, shape, 0.0); }

Tensor TestContext::filled(DType dtype, Shape shape, double value) {
  return made(ctx_, dtype, shape, [&](std::int64_t) { return value; });
}

Tensor TestContext::from(DType dtype, Shape shape, const std::vector<double>& values) {
  COPPICE_CHECK(shape.numel() == std::ssize(values), "{} values for {}", values.size(), shape);
  return made(ctx_, dtype, shape,
              [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

std::vector<double> values_of(ConstTensorView tensor) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(tensor.numel()));
  const HostBytes bytes(tensor);
  for_each_element(tensor, [&](std::int64_t offset, std::int64_t) {
    values.push_back(load(tensor.dtype(), bytes.data() + offset));
  });
  return values;
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  for (double& value : values) {
    std::byte element[sizeof(double)];
    store(dtype, element, value);
    value = load(dtype, element);
  }
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
  const HostBytes bytes_a(a), bytes_b(b);
  std::vector<std::int64_t> offsets;
  for_each_element(a, [&](std::int64_t offset, std::int64_t) { offsets.push_back(offset); });
  bool equal = true;
  for_each_element(b, [&](std::int64_t offset, std::int64_t i) {
    equal = equal &&
            std::memcmp(bytes_a.data() + offsets[static_cast<std::size_t>(i)],
                        bytes_b.data() + offset, static_cast<std::size_t>(size_of(a.dtype()))) == 0;
  });
  return equal;
}

}  // namespace coppice::test
