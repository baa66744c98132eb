#include "kernels/cuda/runtime/device_memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<DeviceMemory> FreeDeviceMemory() {
  DeviceMemory memory;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemGetInfo(&memory.free, &memory.total), "free device memory"));
  return memory;
}

absl::StatusOr<Buffer> AllocateDevice(size_t bytes, std::string_view purpose) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) return Buffer(data, bytes, [](void* memory) { cudaFree(memory); });
  // The failed call left this error for the next one to find.
  cudaGetLastError();
  DeviceMemory memory;
  cudaMemGetInfo(&memory.free, &memory.total);
  // Free memory in pieces may be too little although its sum is not.
  const size_t missing = bytes > memory.free ? bytes - memory.free : 0;
  const std::string what =
      absl::StrCat(std::string(purpose), " needs ", bytes, " bytes of device memory, ", memory.free,
                   " of ", memory.total, " are free, ", missing, " are missing");
  return StatusOfCuda(error, what.c_str());
}

absl::StatusOr<Buffer> AllocatePinned(size_t bytes, std::string_view purpose) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes);
  if (error == cudaSuccess) return Buffer(data, bytes, [](void* memory) { cudaFreeHost(memory); });
  cudaGetLastError();
  const std::string what =
      absl::StrCat(std::string(purpose), " needs ", bytes, " bytes of pinned memory");
  return StatusOfCuda(error, what.c_str());
}

}  // namespace lockstep::kernels::cuda
