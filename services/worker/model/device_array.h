#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::worker {

// A typed array in a backend's memory that keeps its room from step to step. Move-only.
template <typename T>
class DeviceArray {
 public:
  // Room for `count` elements; contents are lost when it grows, and pointers from data() too.
  absl::Status Reserve(kernels::KernelSet* kernels, size_t count, std::string_view purpose) {
    if (count * sizeof(T) <= buffer_.bytes()) return absl::OkStatus();
    const size_t doubled = std::max(count * sizeof(T), 2 * buffer_.bytes());
    // An op that still reads the old room must end before that is freed.
    LOCKSTEP_RETURN_IF_ERROR(kernels->Synchronize());
    LOCKSTEP_ASSIGN_OR_RETURN(buffer_, kernels->Allocate(doubled, purpose));
    return absl::OkStatus();
  }
  // `values` must stay until the backend has synchronised.
  void Upload(kernels::KernelSet* kernels, std::span<const T> values) {
    LOCKSTEP_CHECK_LE(values.size_bytes(), buffer_.bytes());
    if (!values.empty()) kernels->Upload(values.data(), values.size_bytes(), data());
  }
  // `values` is filled when the backend has synchronised.
  void Download(kernels::KernelSet* kernels, std::span<T> values) const {
    LOCKSTEP_CHECK_LE(values.size_bytes(), buffer_.bytes());
    if (!values.empty()) kernels->Download(data(), values.size_bytes(), values.data());
  }
  T* data() const { return buffer_.as<T>(); }

 private:
  kernels::Buffer buffer_;
};

}  // namespace lockstep::worker
