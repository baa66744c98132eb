#include "services/worker/model/step_arena.h"

#include "common/base/status_macros.h"

namespace lockstep::worker {

absl::Status StepArena::Allocate(kernels::KernelSet* kernels, size_t bytes,
                                 std::string_view purpose) {
  LOCKSTEP_ASSIGN_OR_RETURN(device_, kernels->Allocate(bytes, purpose));
  for (kernels::Buffer& host : hosts_) {
    LOCKSTEP_ASSIGN_OR_RETURN(host, kernels->AllocateHost(bytes, purpose));
  }
  return absl::OkStatus();
}

void StepArena::Begin(int slot) {
  slot_ = slot;
  used_ = 0;
}

void StepArena::Upload(kernels::KernelSet* kernels) {
  kernels->Upload(hosts_[slot_].as<void>(), used_, device_.as<void>());
}

void StepArena::Download(kernels::KernelSet* kernels, size_t bytes) {
  LOCKSTEP_CHECK_LE(bytes, used_);
  kernels->Download(device_.as<void>(), bytes, hosts_[slot_].as<void>());
}

}  // namespace lockstep::worker
