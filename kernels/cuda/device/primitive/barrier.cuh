#pragma once

#include <cstdint>

#include "kernels/cuda/device/primitive/mma.cuh"

// A barrier in shared memory, on which threads and copies arrive and others wait.
namespace lockstep::kernels::cuda {

using Barrier = uint64_t;

__device__ __forceinline__ void InitBarrier(Barrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ __forceinline__ void Arrive(Barrier* barrier) {
  asm volatile(
      "{\n\t.reg .b64 state;\n\t"
      "mbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(SharedAddress(barrier))
      : "memory");
}

// Waits until the phase of this parity has completed. Hopper suspends a thread meanwhile.
__device__ __forceinline__ void Wait(Barrier* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
#endif
  }
}

// A position in a ring of stages: which one, and the parity of its present round.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace lockstep::kernels::cuda
