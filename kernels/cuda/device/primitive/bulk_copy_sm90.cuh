#pragma once

#include <cstdint>

#include "kernels/cuda/device/primitive/barrier.cuh"
#include "kernels/cuda/device/primitive/mma.cuh"

// Bulk copies from global to shared memory that complete on a barrier in shared memory. One thread
// issues a copy of kilobytes; nobody computes addresses.
namespace lockstep::kernels::cuda {

// Makes initialised barriers visible to the copy engine; once, before the first copy.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and lets the phase wait for `bytes` of copies too.
__device__ __forceinline__ void ArriveExpecting(Barrier* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// `bytes`, a multiple of 16, between addresses that are multiples of 16.
__device__ __forceinline__ void BulkCopy(void* shared, const void* global, uint32_t bytes,
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// Orders ordinary stores to shared memory before reads of the tensor core or the copy engine.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace lockstep::kernels::cuda
