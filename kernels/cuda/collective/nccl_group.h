#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/collective.h"
#include "kernels/collective/meeting_point.h"
#include "kernels/cuda/collective/peer_kernels.h"

// Ranks on GPUs of one process that send each other whole messages through NCCL, and add them by
// themselves: for GPUs that cannot read each other's memory, and to show that the way on which sums
// travel reaches no bit. NCCL's own all-reduce adds in an order of its own.
namespace lockstep::kernels::cuda {

// What all ranks of a group share: a communicator for each.
class NcclState;

// One rank's end, on one stream of its device. NCCL's kernels wait without end: who owns the group
// abandons it when a rank stays away, which ends them.
class NcclEnd final : public Collective {
 public:
  NcclEnd(std::shared_ptr<NcclState> state, int rank);

  // Room for messages of `bytes`, on the current device, and the rank's columns of every AllGather.
  // All ranks at once, before any op; ops go to `stream`.
  absl::Status Open(size_t bytes, const ColumnShare& share, cudaStream_t stream);

  int rank() const override { return rank_; }
  int ranks() const override;
  void AllReduce(const float* x, size_t count, float* y) override;
  void AllGather(const ColumnShare& share, float* y, size_t y_stride) override;
  absl::Status status() const override;

 private:
  // Sends x [count] to all others; counts[r] elements of each lie in Slot(r) then.
  absl::Status Swap(const float* x, size_t count, const std::array<size_t, kPeersMax>& counts);
  float* Slot(int rank) const { return slots_.as<float>() + static_cast<size_t>(rank) * slot_; }

  const std::shared_ptr<NcclState> state_;
  const int rank_;
  cudaStream_t stream_ = nullptr;
  absl::Status status_;
  Buffer slots_;
  size_t slot_ = 0;  // Elements.
  std::array<ColumnShare, kPeersMax> shares_ = {};
  ColumnShare own_;  // Others read it while they open.
};

// Rank r on devices[r], each another one. INVALID_ARGUMENT unless there are a power of two of them,
// 8 at most; UNAVAILABLE with NCCL's words when it cannot connect them.
absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateNcclGroup(const std::vector<int>& devices);

}  // namespace lockstep::kernels::cuda
