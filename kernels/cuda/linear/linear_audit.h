#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/linear/linear_rung.h"

namespace lockstep::kernels::cuda {

// A copy of one row into a ring; which row and where follow from a number in device memory, so
// that a captured graph looks at another row in every step.
struct AuditCopy {
  const void* matrix = nullptr;
  void* ring = nullptr;
  uint32_t* filled = nullptr;  // [slots], or null.
  const uint64_t* step = nullptr;
  size_t stride_bytes = 0;
  size_t row_bytes = 0;  // A multiple of 8.
  int rows = 0;
  int slots = 0;
};
cudaError_t SaveAuditedRow(const AuditCopy& copy, cudaStream_t stream);

// Watches one layer while it serves: nodes of the step's graph save one row of x and y per step,
// and the reference kernel computes them again later. A fault that touches a share f of a layer's
// rows goes unseen in n audited steps with probability (1 - f)^n; one that touches every row is
// seen in the first, down to a single bit of the row. Belongs to the thread and the stream of the
// layer.
class LinearAudit {
 public:
  // The last `slots` steps are kept between checks.
  static absl::StatusOr<LinearAudit> Create(const LinearShape& shape, bool accumulate, int slots);

  // Around the layer's own call, with the same arguments. `step` is a counter in device memory
  // that the caller raises once a step. Only enqueue.
  absl::Status EnqueueBefore(const LinearCall& call, const uint64_t* step, cudaStream_t stream);
  absl::Status EnqueueAfter(const LinearCall& call, const uint64_t* step, cudaStream_t stream);

  // Computes what was saved again and waits: the number of elements whose bits differ. Empties the
  // ring. `compared` gets the number of elements looked at.
  absl::StatusOr<uint64_t> Check(const void* weight, const void* bias, uint64_t& compared,
                                 cudaStream_t stream);

 private:
  LinearAudit(const LinearShape& shape, bool accumulate, int slots);

  absl::Status SaveY(const LinearCall& call, const uint64_t* step, const Buffer& ring,
                     cudaStream_t stream);
  absl::Status Recompute(const void* weight, const void* bias, cudaStream_t stream);

  LinearShape shape_;
  LinearShape ring_shape_;  // The same with dense rows.
  bool accumulate_;
  int slots_;
  Buffer x_;         // [slots, inputs]
  Buffer y_;         // [slots, outputs]
  Buffer expected_;  // [slots, outputs]; before a check the residual that y started from.
  Buffer product_;   // [segments][slots, outputs]
  Buffer filled_;
  Buffer differing_;
};

}  // namespace lockstep::kernels::cuda
