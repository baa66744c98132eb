#include "tests/gpu/device_faults.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::testing {
namespace {

constexpr int kThreads = 1024;

__global__ void TrapKernel() { __trap(); }

__global__ void __launch_bounds__(kThreads) StallKernel(uint64_t nanoseconds) {
  uint64_t begin;
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

}  // namespace

cudaError_t TrapDevice() {
  TrapKernel<<<1, 1>>>();
  return cudaGetLastError();
}

cudaError_t StallDevice(uint64_t nanoseconds) {
  int device = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  // All of its shared memory and half of its threads: no other CTA fits beside one of these.
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(StallKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared_bytes);
  }
  if (error != cudaSuccess) return error;
  StallKernel<<<multiprocessors, kThreads, shared_bytes>>>(nanoseconds);
  return cudaGetLastError();
}

}  // namespace lockstep::testing
