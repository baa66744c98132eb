#include "kernels/cuda/runtime/event.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<Event> CreateEvent() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaEventCreate(&event), "event"));
  return Event(event);
}

}  // namespace lockstep::kernels::cuda
