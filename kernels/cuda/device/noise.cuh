#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device/functions.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"

// The sampler's noise by itself, for tests of its bits.
namespace lockstep::kernels::cuda {

// Noise of all ids of a vocabulary, without a draw.
__global__ void NoiseKernel(uint64_t sub_seed, uint32_t position, int vocabulary, float* noise) {
  WaitForKernels();
  const int quad = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const std::array<uint32_t, 4> words =
      RandomWords(sub_seed, position, static_cast<uint32_t>(quad));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (4 * quad + i < vocabulary) noise[4 * quad + i] = GumbelNoise(words[i]);
  }
}

// The noise of single words, and what lets a draw pass over them.
__global__ void NoiseOfWordsKernel(const uint32_t* words, int count, float* noise, float* bounds,
                                   uint32_t* limits) {
  WaitForKernels();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  noise[i] = GumbelNoise(words[i]);
  bounds[i] = GumbelBound(words[i]);
  limits[i] = ComplementLimit(-noise[i]);
}

}  // namespace lockstep::kernels::cuda
