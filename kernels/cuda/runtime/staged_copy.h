#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/runtime/event.h"

namespace lockstep::kernels::cuda {

// Rows of `width` bytes in the host's memory, `stride` bytes from one to the next.
struct ByteRows {
  const void* data = nullptr;
  size_t count = 0;
  size_t width = 0;
  size_t stride = 0;
};

// Copies memory that the device cannot read by itself, such as a mapped file, through two pinned
// buffers: the host fills one while the device reads the other. Lives as long as what it copies is
// on its way, and is outlived by its stream. One thread at a time. Example:
//   LOCKSTEP_ASSIGN_OR_RETURN(const auto copy, StagedCopy::Create(stream));
//   LOCKSTEP_RETURN_IF_ERROR(copy->Rows(target, {.data = pages, .count = 1, .width = bytes},
//   name));
class StagedCopy {
 public:
  static constexpr size_t kBufferBytes = size_t{16} << 20;

  static absl::StatusOr<std::unique_ptr<StagedCopy>> Create(cudaStream_t stream);
  // Waits until the device has read the buffers.
  ~StagedCopy();

  // Puts the rows at `device`, without gaps. Returns when the host's memory is read; the device has
  // them once the stream has run this far. An error names `what`.
  absl::Status Rows(void* device, const ByteRows& rows, std::string_view what);

 private:
  explicit StagedCopy(cudaStream_t stream) : stream_(stream) {}

  struct Stage {
    Buffer buffer;
    Event read;  // By the device.
  };

  const cudaStream_t stream_;
  std::array<Stage, 2> stages_;
  size_t next_ = 0;
};

}  // namespace lockstep::kernels::cuda
