#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/linear/linear_rung.h"
#include "kernels/cuda/linear/timed_graph.h"

namespace lockstep::kernels::cuda {

// What timing a linear layer needs: random operands, and so many copies of the weight that none is
// still in a cache when its turn comes again, as in a model.
class LinearTiming {
 public:
  // Memory for calls of at most `rows_max` rows with `workspace_bytes` of scratch.
  static absl::StatusOr<LinearTiming> Create(const LinearShape& shape, int rows_max,
                                             size_t workspace_bytes, cudaStream_t stream);

  using Layer = std::function<absl::Status(const LinearCall& call, cudaStream_t stream)>;

  // A graph of calls of `rows` rows that runs for about `microseconds`.
  absl::StatusOr<TimedGraph> Graph(int rows, double microseconds, const Layer& layer) const;

  // The fewest microseconds that a call can take: its bytes at the rate at which memory can be
  // read, or its operations at that of the tensor cores.
  static double FloorMicroseconds(const LinearShape& shape, int rows);

 private:
  LinearTiming() = default;

  LinearShape shape_;
  cudaStream_t stream_ = nullptr;
  int copies_ = 0;
  size_t weight_bytes_ = 0;
  Buffer weights_;
  Buffer x_;
  Buffer y_;
  Buffer bias_;
  Buffer workspace_;
};

}  // namespace lockstep::kernels::cuda
