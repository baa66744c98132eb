#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::kernels::cuda {

// Sets the kernel's shared memory and launches it. Arguments are the kernel's own.
template <typename... Parameters>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, Parameters... parameters) {
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t error = cudaFuncSetAttribute(
          entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
      error != cudaSuccess) {
    return error;
  }
  void* arguments[] = {&parameters...};
  return cudaLaunchKernel(entry, grid, block, arguments, shared_bytes, stream);
}

}  // namespace lockstep::kernels::cuda
