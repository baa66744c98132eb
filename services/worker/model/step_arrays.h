#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/kernel_set.h"
#include "kernels/api/step.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/device_array.h"

namespace lockstep::worker {

struct StepLimits {
  int rows_max = 0;
  int sequences_max = 0;
  int context_tokens_max = 0;
  int kv_blocks = 0;
  int kv_block_tokens = 0;
  int vocabulary = 0;
};

// A step's StepInputs: laid out in one host array, uploaded in one copy. The planner keeps to the
// limits; a step beyond them is a broken invariant and ends the process.
class StepArrays {
 public:
  explicit StepArrays(const StepLimits& limits) : limits_(limits) {}
  absl::Status Allocate(kernels::KernelSet* kernels);

  // Both describe the step until the next call; the backend must have synchronised before it.
  void Build(std::span<const StepSequence> sequences);
  void Upload(kernels::KernelSet* kernels);

  const kernels::StepShape& shape() const { return shape_; }
  kernels::StepInputs inputs() const;
  // First row of each sequence, and the row count.
  std::span<const int32_t> query_start() const;

 private:
  // Offsets of the parts of the array for the present shape.
  size_t positions_begin() const { return shape_.rows; }
  size_t row_sequence_begin() const { return size_t{2} * shape_.rows; }
  size_t query_start_begin() const { return size_t{3} * shape_.rows; }
  size_t block_table_begin() const { return query_start_begin() + shape_.sequences + 1; }
  int BlocksOf(const StepSequence& sequence) const;
  void CheckSequence(const StepSequence& sequence) const;

  const StepLimits limits_;
  kernels::StepShape shape_;
  std::vector<int32_t> host_;
  DeviceArray<int32_t> device_;
};

}  // namespace lockstep::worker
