#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"

namespace lockstep::kernels::cuda {

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<CUstream_st, StreamDeleter>;

// A stream that does not wait for the default one.
absl::StatusOr<Stream> CreateStream();

}  // namespace lockstep::kernels::cuda
