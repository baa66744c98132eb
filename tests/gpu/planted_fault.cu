// One fault for each tool of compute-sanitizer, by the tool's name: sanitize.sh shows with them
// that a clean run means something. Usage: gpu_planted_fault TOOL
#include <cuda_runtime.h>

#include <cstdio>
#include <string>

namespace lockstep {
namespace {

constexpr int kThreads = 64;

// One element behind the end.
__global__ void WritesBehindTheEnd(int* values, int count) {
  if (static_cast<int>(threadIdx.x) <= count) values[threadIdx.x] = 1;
}

// A barrier is missing between the stores and the loads of another warp.
__global__ void ReadsWithoutABarrier(int* values) {
  __shared__ int shared[kThreads];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  values[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}

__global__ void Adds(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x] + 1; }

// A barrier of the whole CTA that half of each warp does not reach.
__global__ void SyncsHalfAWarp(int* values) {
  if (threadIdx.x % 32 < 16) __syncthreads();
  values[threadIdx.x] = 1;
}

bool Run(const std::string& fault) {
  int* from = nullptr;
  int* to = nullptr;
  if (cudaMalloc(&from, kThreads * sizeof(int)) != cudaSuccess) return false;
  if (cudaMalloc(&to, kThreads * sizeof(int)) != cudaSuccess) return false;
  if (fault == "memcheck") {
    WritesBehindTheEnd<<<1, 2 * kThreads>>>(to, kThreads);
  } else if (fault == "racecheck") {
    ReadsWithoutABarrier<<<1, kThreads>>>(to);
  } else if (fault == "initcheck") {
    Adds<<<1, kThreads>>>(from, to);
  } else if (fault == "synccheck") {
    SyncsHalfAWarp<<<1, kThreads>>>(to);
  } else {
    return false;
  }
  return cudaDeviceSynchronize() == cudaSuccess && cudaFree(from) == cudaSuccess &&
         cudaFree(to) == cudaSuccess;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const bool done = argc == 2 && lockstep::Run(argv[1]);
  if (!done) std::fprintf(stderr, "the planted fault did not run to its end\n");
  return done ? 0 : 1;
}
