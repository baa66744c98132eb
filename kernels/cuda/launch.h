#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::kernels::cuda {

// Shared memory that a kernel has without asking.
inline constexpr size_t kSharedWithoutAsking = size_t{48} << 10;

// Launches a kernel that may start while those ahead of it end: it calls WaitForKernels before it
// looks at what they write or writes what they look at. Arguments are the kernel's own.
template <typename... Parameters>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, Parameters... parameters) {
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > kSharedWithoutAsking) {
    if (const cudaError_t error = cudaFuncSetAttribute(
            entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
        error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  void* arguments[] = {&parameters...};
  return cudaLaunchKernelExC(&config, entry, arguments);
}

}  // namespace lockstep::kernels::cuda
