#pragma once

// Kernels of a stream that overlap: one that was launched with programmatic stream serialization
// may start before those ahead of it have ended. Before Hopper nothing overlaps, and there is
// nothing to say.
namespace lockstep::kernels::cuda {

// Lets the next kernel of the stream start, where it was launched so, up to its WaitForKernels.
__device__ __forceinline__ void AllowNextKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until kernels before this one are done and what they wrote is seen.
__device__ __forceinline__ void WaitForKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace lockstep::kernels::cuda
