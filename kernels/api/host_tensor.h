#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/api/dtype.h"

namespace lockstep::kernels {

// A row-major tensor, as a checkpoint stores it. Does not own `data`, which lies in host memory, or
// in that of the backend that drew it.
struct HostTensor {
  std::string name;  // For error messages, for example "model.layers.0.mlp.down_proj.weight".
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t row_stride = 0;  // Elements from one row of a matrix to the next; 0: they lie close.
};

inline size_t RowStride(const HostTensor& matrix) {
  return static_cast<size_t>(matrix.row_stride > 0 ? matrix.row_stride : matrix.shape[1]);
}

inline size_t ElementCount(const HostTensor& tensor) {
  size_t count = 1;
  for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
  return count;
}

}  // namespace lockstep::kernels
