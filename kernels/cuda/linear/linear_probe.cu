#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/linear_probe.cuh"
#include "kernels/cuda/linear/linear_kernels.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Ctas(size_t items) {
  return static_cast<unsigned>(
      std::clamp<size_t>((items + kThreads - 1) / kThreads, 1, size_t{132} * 16));
}

}  // namespace

cudaError_t FillAdversarialX(void* x, int rows, int inputs, int stride, cudaStream_t stream) {
  if (inputs % kAdversarialPeriods != 0) return cudaErrorInvalidValue;
  FillAdversarialXKernel<<<Ctas(static_cast<size_t>(rows) * static_cast<size_t>(inputs)), kThreads,
                           0, stream>>>(static_cast<uint16_t*>(x), rows, inputs,
                                        static_cast<size_t>(stride));
  return cudaGetLastError();
}

cudaError_t FillAdversarialWeight(void* weight, int outputs, int inputs, cudaStream_t stream) {
  if (inputs % kAdversarialPeriods != 0) return cudaErrorInvalidValue;
  FillAdversarialWeightKernel<<<Ctas(static_cast<size_t>(outputs) * static_cast<size_t>(inputs)),
                                kThreads, 0, stream>>>(static_cast<uint16_t*>(weight), outputs,
                                                       inputs);
  return cudaGetLastError();
}

cudaError_t FillUniform(void* values, size_t count, uint32_t seed, cudaStream_t stream) {
  FillUniformKernel<<<Ctas(count), kThreads, 0, stream>>>(static_cast<uint16_t*>(values), count,
                                                          seed);
  return cudaGetLastError();
}

cudaError_t CountDifferences(const CompareCall& call, unsigned long long* differing,
                             cudaStream_t stream) {
  const unsigned grid = Ctas(static_cast<size_t>(call.rows) * static_cast<size_t>(call.columns));
  if (call.type == DType::kBf16) {
    CountDifferencesKernel<<<grid, kThreads, 0, stream>>>(
        static_cast<const uint16_t*>(call.a), static_cast<const uint16_t*>(call.b), call.a_stride,
        call.b_stride, call.rows, call.columns, differing);
  } else {
    CountDifferencesKernel<<<grid, kThreads, 0, stream>>>(
        static_cast<const uint32_t*>(call.a), static_cast<const uint32_t*>(call.b), call.a_stride,
        call.b_stride, call.rows, call.columns, differing);
  }
  return cudaGetLastError();
}

}  // namespace lockstep::kernels::cuda
