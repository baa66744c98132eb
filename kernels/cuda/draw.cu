#include "kernels/cuda/draw.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/draw.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kCtasMax = size_t{132} * 16;

}  // namespace

cudaError_t Draw(const DrawArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const size_t ctas = std::min(kCtasMax, (args.count + kThreads - 1) / kThreads);
  DrawKernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace lockstep::kernels::cuda
