#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::kernels::cuda {

// Shared memory that a kernel has without asking.
inline constexpr size_t kSharedWithoutAsking = size_t{48} << 10;

// Whether the code that a device of this compute capability runs waits for kernels ahead of it:
// Hopper's. Newer devices run Ampere's, compiled by the driver, which has no instruction for that.
constexpr bool CodeWaits(int major, int minor) { return major == 9 && minor == 0; }

// Whether kernels of a stream can overlap on this process's device.
inline bool KernelsCanOverlap() {
  static const bool can = [] {
    int device = 0;
    int major = 0;
    int minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           CodeWaits(major, minor);
  }();
  return can;
}

// Launches a kernel that may start while those ahead of it end, where `overlaps`: it calls
// WaitForKernels before it looks at what they write or writes what they look at. Arguments are the
// kernel's own.
template <typename... Parameters>
cudaError_t LaunchWith(bool overlaps, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                       size_t shared_bytes, cudaStream_t stream, Parameters... parameters) {
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
  config.numAttrs = overlaps ? 1 : 0;
  void* arguments[] = {&parameters...};
  return cudaLaunchKernelExC(&config, entry, arguments);
}

template <typename... Parameters>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, Parameters... parameters) {
  return LaunchWith(KernelsCanOverlap(), kernel, grid, block, shared_bytes, stream, parameters...);
}

// Launches a kernel that starts when those ahead of it have ended. Portable kernels must: their
// code has no instruction to wait for others.
template <typename... Parameters>
cudaError_t LaunchInOrder(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, Parameters... parameters) {
  return LaunchWith(false, kernel, grid, block, shared_bytes, stream, parameters...);
}

}  // namespace lockstep::kernels::cuda
