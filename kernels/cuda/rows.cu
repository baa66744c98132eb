#include <cuda_runtime.h>

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"

namespace lockstep::kernels::cuda {
namespace {

// Rows in x, which may be many; parts of a row in y.
dim3 GridOf(int rows, int vectors, int vectors_per_thread = 1) {
  const int part = kRowThreads * vectors_per_thread;
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>((vectors + part - 1) / part));
}

// Vectors that an H200 takes at once, one a thread.
constexpr int kVectorsAtOnce = 132 * 2048;

struct Copy {
  const void* x;
  const int32_t* source;
  const int32_t* drawn;
  void* y;
  int rows;
  int width;
};

cudaError_t CopyRows(const Copy& copy, cudaStream_t stream) {
  if (copy.rows < 0 || copy.width <= 0 || copy.width % kRowVector != 0) {
    return cudaErrorInvalidValue;
  }
  if (copy.rows == 0) return cudaSuccess;
  const int vectors = copy.width / kRowVector;
  return LaunchKernel(CopyRowsKernel, GridOf(copy.rows, vectors), dim3(kRowThreads), 0, stream,
                      static_cast<const uint4*>(copy.x), copy.source, copy.drawn,
                      static_cast<uint4*>(copy.y), vectors);
}

}  // namespace

cudaError_t Embedding(const EmbeddingArgs& args, cudaStream_t stream) {
  if (args.table_dtype != DType::kBf16) return cudaErrorInvalidValue;
  return CopyRows({args.table, args.ids, args.drawn_ids, args.y, args.rows, args.width}, stream);
}

cudaError_t GatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  return CopyRows({args.x, args.source_rows, nullptr, args.y, args.rows, args.width}, stream);
}

cudaError_t SwiGlu(const SwiGluArgs& args, cudaStream_t stream) {
  if (args.rows < 0 || args.width <= 0 || args.width % kRowVector != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int vectors = args.width / kRowVector;
  const auto* gate_up = static_cast<const uint4*>(args.gate_up);
  auto* y = static_cast<uint4*>(args.y);
  // Two a thread, so that all loads are on their way at once; with few, the second only waits.
  if (static_cast<int64_t>(args.rows) * vectors > kVectorsAtOnce) {
    return LaunchKernel(SwiGluKernel<2>, GridOf(args.rows, vectors, 2), dim3(kRowThreads), 0,
                        stream, gate_up, y, vectors);
  }
  return LaunchKernel(SwiGluKernel<1>, GridOf(args.rows, vectors), dim3(kRowThreads), 0, stream,
                      gate_up, y, vectors);
}

}  // namespace lockstep::kernels::cuda
