#pragma once

#include <cstdint>

// Copies of 16 bytes from global to shared memory that nobody waits for at once. A thread waits for
// groups of its own copies.
namespace lockstep::kernels::cuda {

// Between addresses that are multiples of 16. Zeros where the source does not exist; it is not read
// then.
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, bool exists) {
  const uint32_t bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// Ends this thread's present group of copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but this thread's last kPending groups are done.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lockstep::kernels::cuda
