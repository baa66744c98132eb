#include "kernels/cuda/runtime/device_memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<Buffer> AllocateDevice(size_t bytes, std::string_view purpose) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) return Buffer(data, bytes, [](void* memory) { cudaFree(memory); });
  // The failed call left this error for the next one to find.
  cudaGetLastError();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  const std::string what =
      absl::StrCat(std::string(purpose), " needs ", bytes, " bytes of device memory, ", free_bytes,
                   " of ", total_bytes, " are free");
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
