#include "kernels/cuda/backend/kernel_path_of.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<cudaDeviceProp> PropertiesOf(int device) {
  cudaDeviceProp properties;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaGetDeviceProperties(&properties, device), "device properties"));
  return properties;
}

absl::StatusOr<KernelPath> KernelPathOf(const std::string& gpu, int major, int minor) {
  if (major < 8) {
    return absl::FailedPreconditionError(absl::StrCat("the device, ", gpu,
                                                      ", has compute capability ", major, ".",
                                                      minor, "; the kernels need 8.0 or later"));
  }
  // Hopper's own code runs on no other generation.
  return major == 9 && minor == 0 ? KernelPath::kSm90 : KernelPath::kPortable;
}

}  // namespace lockstep::kernels::cuda
