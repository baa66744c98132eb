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
};

inline size_t ElementCount(const HostTensor& tensor) {
  size_t count = 1;
  for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
  return count;
}

}  // namespace lockstep::kernels
