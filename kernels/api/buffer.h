#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::kernels {

// Memory of a backend, 256-byte aligned. Frees itself; move-only. `data()` is a host address on the
// CPU backend and a device address on a GPU: only ops and KernelSet::{Upload, Download} may follow
// it.
class Buffer {
 public:
  using Deleter = void (*)(void*);
  Buffer() : memory_(nullptr, nullptr) {}
  Buffer(void* data, size_t bytes, Deleter deleter) : memory_(data, deleter), bytes_(bytes) {}

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, Deleter> memory_;
  size_t bytes_ = 0;
};

}  // namespace lockstep::kernels
