#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <set>

#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {

// Splits of attention in normal mode: of whatever size is fastest for a number of sequences, which
// the contract does not allow, since the size decides bits. Without Create, the contract's.
class FreeSplits {
 public:
  // Times sizes at decode batches and contexts within `bounds`, on a pool of its own.
  static absl::StatusOr<FreeSplits> Create(const StepBounds& bounds,
                                           const AttentionSchedule& schedule, cudaStream_t stream);

  // `usual` for every step but those in which each sequence has one row.
  int SizeFor(const StepShape& shape, int usual) const;
  // All sizes that SizeFor gives.
  std::set<int> Sizes(int usual) const;

 private:
  std::map<int, int> by_sequences_;  // Upper end of a range of batches -> its size.
};

}  // namespace lockstep::kernels::cuda
