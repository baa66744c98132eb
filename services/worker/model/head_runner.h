#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/step_arena.h"
#include "services/worker/model/transformer.h"

namespace lockstep::worker {

// What follows the layers of a step: logits of the rows that need them, drawing, logprobs. Works in
// pieces of at most logits_rows_max rows, so that scoring a long prompt needs no more memory than a
// short one; how rows fall into pieces is part of the schedule, never of the bits. Example:
//   head.Build(sequences, first_rows, 0, slot, &inputs);  // Then upload inputs, run the layers,
//   head.Enqueue();
//   head.Download();
//   head.Collect(slot, &results);  // When the device has run this far.
class HeadRunner {
 public:
  struct Options {
    int rows_max = 0;            // Of a step.
    int sequences_max = 0;       // In a step.
    int vocabulary_sampled = 0;  // Ids from here on are never drawn.
  };
  // Borrows both.
  HeadRunner(Transformer* transformer, kernels::KernelSet* kernels, const Options& options)
      : transformer_(transformer), kernels_(kernels), options_(options) {}
  absl::Status Allocate();
  // What Build takes of an arena at most.
  size_t BytesMax() const;

  // Which logprobs a step computes: the arrays that come out.
  enum class Logprobs { kNone, kRaw, kAll };

  // Lays the step's head out for `slot`; `first_rows` holds each sequence's first row in the step.
  // With `decode_rows` every sequence draws from its one row, and rows of padding follow.
  absl::Status Build(std::span<const StepSequence> sequences, std::span<const int32_t> first_rows,
                     int decode_rows, int slot, StepArena* inputs);
  // Only enqueues. Depends on decode_rows, logprobs() and counts_drawn() alone, if there are
  // decode_rows.
  void Enqueue();
  void Download();
  // Results parallel to the sequences that were built in `slot`.
  void Collect(int slot, std::vector<StepSequenceResult>* results) const;

  Logprobs logprobs() const { return logprobs_; }
  // Whether the step counts ids that the step before has drawn.
  bool counts_drawn() const { return counts_drawn_; }
  // Where the ids drawn by the step built last are, and for each of its sequences at which index;
  // -1 for one that draws nothing.
  const int32_t* drawn_ids() const { return ids_.device; }
  std::span<const int32_t> drawn_slots() const { return drawn_slots_; }
  // Changes when arrays moved, so that what was captured must not run again.
  int generation() const { return generation_; }

 private:
  static constexpr int kDrawn = -1;
  struct HeadRow {
    int sequence = 0;
    int score_index = kDrawn;  // Into score_targets.
  };
  struct Wanted {
    bool logprobs = false;
    bool score_details = false;
    bool entropy = false;
  };
  // The host's side of a step in flight.
  struct Slot {
    std::vector<HeadRow> rows;
    std::vector<Wanted> wanted;  // By sequence.
    size_t drawn_count = 0;
    std::span<const kernels::LogprobRow> logprob_rows;
    std::span<const int32_t> ids;
    std::span<const kernels::SampleError> draw_errors;
    std::span<const kernels::SampleError> errors;  // Of logprobs.
    std::span<const float> raw, scaled, entropy, top_logprobs, chosen_logprobs;
    std::span<const int32_t> top_ids;
  };

  void PlanRows(std::span<const StepSequence> sequences, Slot* slot);
  absl::Status BuildDraws(std::span<const StepSequence> sequences, const Slot& slot, int slot_index,
                          StepArena* inputs);
  absl::Status BuildLogprobs(std::span<const StepSequence> sequences, int slot_index,
                             StepArena* inputs, Slot* slot);
  void TakeResults(int slot_index, Slot* slot);
  void EnqueuePiece(size_t begin, size_t count);
  void Store(const Slot& slot, size_t index, StepSequenceResult* result) const;

  Transformer* const transformer_;
  kernels::KernelSet* const kernels_;
  const Options options_;
  int generation_ = 0;
  StepArena results_;
  GrowingArray<kernels::IdBias> biases_;
  GrowingArray<kernels::IdCount> counts_;
  GrowingArray<int32_t> chosen_ids_;
  GrowingArray<float> chosen_logprobs_;
  std::array<Slot, kStepsInFlightMax> slots_;

  // Of the step built last.
  size_t row_count_ = 0;    // With padding.
  size_t drawn_count_ = 0;  // With padding.
  bool identity_ = false;   // Row i of the head is row i of the step.
  bool wants_top_ = false;
  Logprobs logprobs_ = Logprobs::kNone;
  bool counts_drawn_ = false;
  std::vector<int32_t> drawn_slots_;
  std::vector<int32_t> drawn_slots_before_;  // Of the step before.
  StepPart<int32_t> source_rows_;
  StepPart<kernels::SamplingRow> sampling_;
  StepPart<kernels::LogprobRow> logprob_rows_;
  StepPart<kernels::IdBias> step_biases_;
  StepPart<kernels::IdCount> step_counts_;
  StepPart<int32_t> step_chosen_ids_;
  StepPart<int32_t> ids_;
  StepPart<kernels::SampleError> draw_errors_;
  StepPart<kernels::SampleError> errors_;
  StepPart<float> raw_, scaled_, entropy_, top_logprobs_, step_chosen_logprobs_;
  StepPart<int32_t> top_ids_;
  size_t results_bytes_ = 0;  // Without what no row wants.
};

}  // namespace lockstep::worker
