#include <cuda_runtime.h>

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"

namespace lockstep::kernels::cuda {
namespace {

// Rows in x, which may be many; parts of a row in y.
dim3 GridOf(int rows, int vectors) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((vectors + kRowThreads - 1) / kRowThreads));
}

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
  return LaunchKernel(SwiGluKernel, GridOf(args.rows, vectors), dim3(kRowThreads), 0, stream,
                      static_cast<const uint4*>(args.gate_up), static_cast<uint4*>(args.y),
                      vectors);
}

}  // namespace lockstep::kernels::cuda
