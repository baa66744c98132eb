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

// Views: elements [begin, end) of a vector or rows of a matrix; columns of a matrix.
inline HostTensor RowRange(const HostTensor& tensor, int64_t begin, int64_t end) {
  const size_t stride = tensor.shape.size() > 1 ? RowStride(tensor) : 1;
  HostTensor rows = tensor;
  rows.data = static_cast<const char*>(tensor.data) +
              static_cast<size_t>(begin) * stride * SizeOf(tensor.dtype);
  rows.shape[0] = end - begin;
  return rows;
}
inline HostTensor ColumnRange(const HostTensor& matrix, int64_t begin, int64_t end) {
  HostTensor columns = matrix;
  columns.data =
      static_cast<const char*>(matrix.data) + static_cast<size_t>(begin) * SizeOf(matrix.dtype);
  columns.row_stride = static_cast<int64_t>(RowStride(matrix));
  columns.shape[1] = end - begin;
  return columns;
}

inline size_t ElementCount(const HostTensor& tensor) {
  size_t count = 1;
  for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
  return count;
}

}  // namespace lockstep::kernels
