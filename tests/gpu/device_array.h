#pragma once

#include <algorithm>
#include <vector>

#include "kernels/api/buffer.h"
#include "tests/gpu/gpu_test.h"

namespace lockstep::testing {

// Values in device memory, and their way there and back.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { Load(host); }
  // Poisoned.
  explicit DeviceArray(size_t count)
      : count_(count), buffer_(DeviceBytes(std::max<size_t>(1, count) * sizeof(T))) {
    Poison();
  }

  void Load(const std::vector<T>& host) {
    LOCKSTEP_CHECK(host.size() <= count_) << host.size() << " values";
    CopyToDevice(host, data());
  }
  // Every byte 0xFF: NaN, or -1. Done when it returns, for every stream.
  void Poison() {
    Must(cudaMemset(buffer_.as<void>(), 0xFF, buffer_.bytes()));
    Must(cudaStreamSynchronize(nullptr));
  }
  std::vector<T> Read() const { return CopyFromDevice(data(), count_); }

  T* data() const { return buffer_.as<T>(); }
  size_t size() const { return count_; }

 private:
  size_t count_;
  kernels::Buffer buffer_;
};

}  // namespace lockstep::testing
