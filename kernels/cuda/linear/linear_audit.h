#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/audit.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/linear/linear_rung.h"
#include "kernels/cuda/runtime/event.h"
#include "kernels/cuda/runtime/stream.h"

namespace lockstep::kernels::cuda {

// A call of a layer, as far as it takes to compute its rows again.
struct AuditedCall {
  LinearShape shape;
  bool accumulate = false;
  const void* weight = nullptr;
  const void* bias = nullptr;
  int rows = 0;

  friend bool operator==(const AuditedCall&, const AuditedCall&) = default;
};

// Watches linear layers while they serve. Around one call of each step, nodes of the step copy a
// few rows of what went in and came out into a ring; whenever half of the ring is full, the
// reference kernel computes these rows again, on a stream of its own beside the steps that come.
// Which rows follows from a count of copies in device memory, so that a captured graph looks at
// other rows in every step.
//
// A fault that touches a share f of the rows of a call goes unseen in n copies of such calls with
// probability at most (1 - f)^(n * kRowsPerCopy), and one that touches every row is seen at the
// first, down to a single bit. NaN equals NaN. What it cannot see: a weight that is wrong in
// memory, and what happens between two layers.
//
// Belongs to the thread of the layers. Example, in every step:
//   audit->Advance(stream);
//   audit->EnqueueBefore(call, …); plan.Run(call, stream); audit->EnqueueAfter(call, …);
//   audit->CountCopy(…);
class LinearAudit {
 public:
  // Rows of a call that a copy takes; all of a call that has no more.
  static constexpr int kRowsPerCopy = 4;
  // Copies after which they are looked at.
  static constexpr int kCopiesPerHalf = 8;

  // For calls of these shapes.
  static absl::StatusOr<std::unique_ptr<LinearAudit>> Create(std::span<const LinearShape> shapes);
  ~LinearAudit();  // Waits for what runs.

  // Around the call, with its arguments. They only enqueue, so that a graph can capture them.
  absl::Status EnqueueBefore(const LinearShape& shape, const LinearCall& call, cudaStream_t stream);
  absl::Status EnqueueAfter(const LinearShape& shape, const LinearCall& call, cudaStream_t stream);
  // Once for every run of the two: when they were enqueued, or each time their graph is launched.
  // In the order of the stream, and at most once between two calls of Advance.
  void CountCopy(const AuditedCall& call);

  // Takes the results that are there and starts the next comparison when half of the ring is full.
  // Waits only where a comparison takes longer than the steps that fill a half. DATA_LOSS names the
  // layer whose bits differed; UNAVAILABLE when the device is lost.
  absl::Status Advance(cudaStream_t stream);
  // Compares all that was copied and waits for it.
  absl::Status Finish(cudaStream_t stream);

  const AuditCounts& counts() const { return counts_; }

 private:
  // Half of the ring: the copies in it, and the comparison that runs over those behind the first
  // `compared_count`.
  struct Half {
    std::vector<AuditedCall> copies;
    size_t compared_count = 0;
    Event copied;
    Event compared;
    bool comparing = false;
  };

  LinearAudit() = default;

  absl::Status Allocate(std::span<const LinearShape> shapes);
  absl::Status Save(const LinearShape& shape, const LinearCall& call, bool before,
                    cudaStream_t stream);
  absl::Status Compare(size_t index, cudaStream_t stream);
  // `count` copies of one layer, from the ring's `begin` on.
  absl::Status CompareRun(const AuditedCall& call, size_t begin, size_t count);
  absl::Status Collect(size_t index);
  absl::Status WaitAndCollect(size_t index);

  Stream side_;
  std::array<Half, 2> halves_;
  size_t filling_ = 0;  // The half that copies go to.
  AuditCounts counts_;
  size_t x_bytes_ = 0;  // Of a row of the ring.
  size_t y_bytes_ = 0;
  Buffer x_;               // [2, kCopiesPerHalf, kRowsPerCopy] rows of x_bytes_.
  Buffer y_;               // The same of y_bytes_, as the layer left them.
  Buffer expected_;        // As y_: what y was before, then what it should be.
  Buffer product_;         // Of the rows of half a ring.
  Buffer clock_;           // AuditClock
  Buffer differing_;       // uint32_t [2, kCopiesPerHalf]: rows that differ.
  Buffer differing_host_;  // The same, pinned.
};

}  // namespace lockstep::kernels::cuda
