#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"

namespace lockstep::kernels::cuda {

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<CUstream_st, StreamDeleter>;

// Whose kernels go first where several streams have some that could start.
enum class StreamPriority { kNormal, kHigh };

// A stream that does not wait for the default one.
absl::StatusOr<Stream> CreateStream(StreamPriority priority = StreamPriority::kNormal);

}  // namespace lockstep::kernels::cuda
