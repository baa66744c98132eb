#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/api/buffer.h"
#include "kernels/cuda/linear/certifier.h"
#include "kernels/cuda/linear/linear_plan.h"

namespace lockstep::testing {

// A shape of dense rows.
kernels::cuda::LinearShape DenseShape(int outputs, int inputs, int segments = 1,
                                      kernels::DType output = kernels::DType::kBf16,
                                      bool bias = false);

// The library's handle, made once.
cublasLtHandle_t Handle();
kernels::cuda::CertificateTable Certified(const std::vector<kernels::cuda::LinearShape>& shapes,
                                          std::vector<int> ladder);

// A batch in which every other row is one and the same probe, and those between are random, huge
// or NaN. Started one row later, the probe stands at the other half of the places: two products
// show it at every place, always beside hostile neighbours.
class LinearRig {
 public:
  LinearRig(const kernels::cuda::LinearShape& shape, int rows_max);

  // y of the probe alone by the reference kernel, with the residual that all rows start from when
  // `accumulate`.
  void ComputeExpected(bool accumulate);

  // Runs `layer` on `rows` rows twice, so that the probe was at every place, and adds the number
  // of its elements that are not as expected to counter `index`. y starts as NaN, or as the
  // residual.
  template <typename Layer>
  void Run(const Layer& layer, int rows, size_t index, cudaStream_t stream) {
    for (const int start : {0, 1}) {
      layer(Call(rows, start, stream), stream);
      Count(rows, start, index, stream);
    }
  }

  // A call on `rows` rows that start with the probe (start 0) or a neighbour (1).
  kernels::cuda::LinearCall Call(int rows, int start, cudaStream_t stream);
  void Count(int rows, int start, size_t index, cudaStream_t stream);

  void ProvideWorkspace(size_t bytes);
  // Waits, and gives all counters.
  std::vector<unsigned long long> Differing();
  static constexpr size_t kCounters = 4096;

 private:
  kernels::cuda::LinearShape shape_;
  int rows_max_;
  bool accumulate_ = false;
  kernels::Buffer weight_;
  kernels::Buffer bias_;
  kernels::Buffer x_;
  kernels::Buffer residual_;  // [rows_max, y_stride], all rows alike.
  kernels::Buffer y_;
  kernels::Buffer expected_;
  kernels::Buffer workspace_;
  kernels::Buffer counters_;
};

// Runs everything that is certified for the shape at a few numbers of rows, 20 times beside a busy
// stream, and expects the reference's bits of each run. The certifier's ladder holds kRepeatedRows;
// `handle` is its own.
inline constexpr int kRepeatedRows = 512;
void ExpectRepeats(kernels::cuda::Certifier& certifier, cublasLtHandle_t handle,
                   const kernels::cuda::LinearShape& shape, bool accumulate);

}  // namespace lockstep::testing
