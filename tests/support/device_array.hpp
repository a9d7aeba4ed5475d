#pragma once
// An array in a CUDA device's memory (real or emulated) for tests of kernels, with plain copies in
// and out. Tensors and their account of memory are left to the tests of ops.
#include <vector>

#include "core/cuda/runtime.hpp"

namespace coppice::test {

template <class T>
class DeviceArray {
 public:
  DeviceArray(Stream& stream, const std::vector<T>& values)
      : stream_(stream),
        size_(values.size()),
        data_(reinterpret_cast<T*>(cuda::allocate(stream.state(), bytes()))) {
    cuda::copy(stream.state(), {cuda::CopyKind::kToDevice, data_, values.data(), bytes()});
  }
  /// Values are not set.
  DeviceArray(Stream& stream, std::size_t size)
      : stream_(stream),
        size_(size),
        data_(reinterpret_cast<T*>(cuda::allocate(stream.state(), bytes()))) {}
  ~DeviceArray() { cuda::free(stream_.state(), reinterpret_cast<std::byte*>(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_ * sizeof(T)); }
  /// Waits for the stream.
  std::vector<T> values() const {
    std::vector<T> result(size_);
    stream_.synchronize();
    cuda::copy(stream_.state(), {cuda::CopyKind::kToHost, result.data(), data_, bytes()});
    return result;
  }

 private:
  Stream& stream_;
  std::size_t size_;
  T* data_;
};

}  // namespace coppice::test
