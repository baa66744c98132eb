#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/mma.cuh"

// Copies of tiles of a matrix that may land in several CTAs of a cluster, and the arrivals and
// stores that cross CTAs for them.
namespace lockstep::kernels::cuda {

// The address of `shared` in the CTA of that rank.
__device__ __forceinline__ uint32_t AddressInCta(const void* shared, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(SharedAddress(shared)), "r"(rank));
  return address;
}

// Orders nothing that was written with ordinary stores: with the scope of the cluster it would wait
// for all of the CTA's memory traffic, a microsecond a time.
__device__ __forceinline__ void ArriveInCta(Barrier* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(AddressInCta(barrier, rank))
               : "memory");
}

__device__ __forceinline__ void StoreInCta(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// The box of `map` whose first element is (column, row), zeros where the matrix ends.
__device__ __forceinline__ void CopyTile(void* shared, const CUtensorMap* map, int column, int row,
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(barrier))
      : "memory");
}

// The same into every CTA whose bit is set in `ctas`, at the same address, on its own barrier.
__device__ __forceinline__ void CopyTileToCtas(void* shared, const CUtensorMap* map, int column,
                                               int row, Barrier* barrier, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(barrier)), "h"(ctas)
      : "memory");
}

__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace lockstep::kernels::cuda
