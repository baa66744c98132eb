#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/device_array.h"
#include "services/worker/model/transformer.h"

namespace lockstep::worker {

// What follows the layers of a step: logits of the rows that need them, drawing, logprobs. Works in
// pieces of at most logits_rows_max rows, so that scoring a long prompt needs no more memory than a
// short one; how rows fall into pieces is part of the schedule, never of the bits.
class HeadRunner {
 public:
  // Borrows both. Ids >= vocabulary_sampled are never drawn.
  HeadRunner(Transformer* transformer, kernels::KernelSet* kernels, int vocabulary_sampled);
  absl::Status Allocate();

  // `first_rows` holds each sequence's first row in the step. Fills `results`, parallel to
  // `sequences`, and returns when the device has finished.
  absl::Status Run(std::span<const StepSequence> sequences, std::span<const int32_t> first_rows,
                   std::vector<StepSequenceResult>* results);

 private:
  static constexpr int kDrawn = -1;
  struct HeadRow {
    int sequence = 0;
    int score_index = kDrawn;  // Into score_targets.
  };

  void PlanRows(std::span<const StepSequence> sequences);
  absl::Status RunPiece(std::span<const StepSequence> sequences,
                        std::span<const int32_t> first_rows, std::span<const HeadRow> rows,
                        std::vector<StepSequenceResult>* results);
  absl::Status Draw(std::span<const StepSequence> sequences, std::span<const HeadRow> drawn,
                    const float* logits, std::vector<StepSequenceResult>* results);
  absl::Status ComputeLogprobs(std::span<const StepSequence> sequences,
                               std::span<const HeadRow> rows, const float* logits,
                               std::vector<StepSequenceResult>* results);
  absl::Status PrepareLogprobs(std::span<const StepSequence> sequences,
                               std::span<const HeadRow> rows,
                               const std::vector<StepSequenceResult>& results);
  void StoreLogprobs(const StepSequence& sequence, const HeadRow& row, size_t index,
                     StepSequenceResult* result) const;

  Transformer* const transformer_;
  kernels::KernelSet* const kernels_;
  const int vocabulary_sampled_;
  std::vector<HeadRow> rows_;

  // Host side of what is uploaded and downloaded; one piece at a time.
  std::vector<int32_t> source_rows_;
  std::vector<kernels::SamplingRow> sampling_;
  std::vector<kernels::IdBias> biases_;
  std::vector<kernels::IdCount> counts_;
  std::vector<int32_t> drawn_ids_;
  std::vector<kernels::SampleError> errors_;
  std::vector<kernels::LogprobRow> logprob_rows_;
  std::vector<int32_t> chosen_ids_;
  std::vector<float> raw_, scaled_, entropy_, top_logprobs_, chosen_logprobs_;
  std::vector<int32_t> top_ids_;

  struct Device {
    DeviceArray<int32_t> source_rows;
    DeviceArray<kernels::SamplingRow> sampling;
    DeviceArray<kernels::IdBias> biases;
    DeviceArray<kernels::IdCount> counts;
    DeviceArray<int32_t> drawn_ids;
    DeviceArray<kernels::SampleError> errors;
    DeviceArray<kernels::LogprobRow> logprob_rows;
    DeviceArray<int32_t> chosen_ids;
    DeviceArray<float> raw, scaled, entropy, top_logprobs, chosen_logprobs;
    DeviceArray<int32_t> top_ids;
  } device_;
};

}  // namespace lockstep::worker
