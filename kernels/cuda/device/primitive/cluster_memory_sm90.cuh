#pragma once

#include <cstdint>

// A cluster: CTAs that run at the same time and read each other's shared memory.
namespace lockstep::kernels::cuda {

__device__ __forceinline__ int RankInCluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

__device__ __forceinline__ int CtasInCluster() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return static_cast<int>(size);
}

// Waits for all threads of the cluster; what they wrote before is seen after. A CTA that others
// read from must pass one more of these before it ends.
__device__ __forceinline__ void SyncCluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Where the CTA of `rank` has what this CTA has at `shared`.
template <typename T>
__device__ __forceinline__ const T* RemoteShared(const T* shared, int rank) {
  const T* remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(shared), "r"(rank));
  return remote;
}

}  // namespace lockstep::kernels::cuda
