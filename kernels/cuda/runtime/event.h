#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"

namespace lockstep::kernels::cuda {

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, EventDeleter>;

// A point of a stream to wait for, with the time at which it was reached.
absl::StatusOr<Event> CreateEvent();

}  // namespace lockstep::kernels::cuda
