#include "services/worker/model/head_runner.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

using kernels::IdBias;
using kernels::IdCount;
using kernels::LogprobRow;
using kernels::SampleError;
using kernels::SamplingRow;

// Division by one is exact, and greedy has no scale: then scaled logprobs are the raw ones.
bool NeedsScaling(float temperature) { return temperature != 0 && temperature != 1; }

// Entries for the counts of a row, with one for an id that is not known yet.
size_t CountsOf(const StepSequence& sequence) {
  return sequence.counts.size() + (sequence.counts_drawn ? 1 : 0);
}

template <typename T>
T* From(const StepPart<T>& part, size_t begin) {
  return part.device == nullptr ? nullptr : part.device + begin;
}

}  // namespace

size_t HeadRunner::BytesMax() const {
  const size_t rows = static_cast<size_t>(options_.rows_max);
  const size_t drawn = static_cast<size_t>(options_.sequences_max);
  return StepArena::BytesOf<int32_t>(rows + drawn) + StepArena::BytesOf<SamplingRow>(drawn) +
         StepArena::BytesOf<LogprobRow>(rows + drawn);
}

absl::Status HeadRunner::Allocate() {
  // A sequence can draw and be scored from the same row.
  const size_t rows = static_cast<size_t>(options_.rows_max + options_.sequences_max);
  constexpr size_t kTop = kernels::kTopLogprobsMax;
  const size_t bytes = 2 * StepArena::BytesOf<int32_t>(rows) +
                       StepArena::BytesOf<SampleError>(rows) + 3 * StepArena::BytesOf<float>(rows) +
                       StepArena::BytesOf<int32_t>(rows * kTop) +
                       StepArena::BytesOf<float>(rows * kTop);
  return results_.Allocate(kernels_, bytes, "results of a step");
}

absl::Status HeadRunner::Build(std::span<const StepSequence> sequences,
                               std::span<const int32_t> first_rows, int decode_rows, int slot_index,
                               StepArena* inputs) {
  Slot& slot = slots_[slot_index];
  PlanRows(sequences, &slot);
  drawn_count_ = std::max(slot.drawn_count, static_cast<size_t>(decode_rows));
  row_count_ = std::max(slot.rows.size(), static_cast<size_t>(decode_rows));
  const size_t piece_max = static_cast<size_t>(transformer_->options().logits_rows_max);
  identity_ = row_count_ <= piece_max;
  source_rows_ = inputs->Take<int32_t>(row_count_);
  std::fill(source_rows_.host.begin() + slot.rows.size(), source_rows_.host.end(), 0);
  for (size_t i = 0; i < slot.rows.size(); ++i) {
    const HeadRow& row = slot.rows[i];
    const StepSequence& sequence = sequences[row.sequence];
    const int within = row.score_index == kDrawn ? static_cast<int>(sequence.tokens.size()) - 1
                                                 : sequence.score_begin + row.score_index;
    source_rows_.host[i] = first_rows[row.sequence] + within;
    identity_ = identity_ && source_rows_.host[i] == static_cast<int32_t>(i);
  }
  LOCKSTEP_RETURN_IF_ERROR(BuildDraws(sequences, slot, slot_index, inputs));
  LOCKSTEP_RETURN_IF_ERROR(BuildLogprobs(sequences, slot_index, inputs, &slot));
  TakeResults(slot_index, &slot);
  return absl::OkStatus();
}

// Drawn rows come first, so that drawing works on neighbouring rows.
void HeadRunner::PlanRows(std::span<const StepSequence> sequences, Slot* slot) {
  slot->rows.clear();
  slot->wanted.clear();
  drawn_slots_before_.swap(drawn_slots_);
  drawn_slots_.assign(sequences.size(), -1);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& sequence = sequences[i];
    slot->wanted.push_back({.logprobs = sequence.logprobs,
                            .score_details = sequence.score_details,
                            .entropy = sequence.entropy});
    if (!sequence.sample) continue;
    drawn_slots_[i] = static_cast<int32_t>(slot->rows.size());
    slot->rows.push_back({.sequence = static_cast<int>(i)});
  }
  slot->drawn_count = slot->rows.size();
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (size_t target = 0; target < sequences[i].score_targets.size(); ++target) {
      slot->rows.push_back(
          {.sequence = static_cast<int>(i), .score_index = static_cast<int>(target)});
    }
  }
}

absl::Status HeadRunner::BuildDraws(std::span<const StepSequence> sequences, const Slot& slot,
                                    int slot_index, StepArena* inputs) {
  sampling_ = inputs->Take<SamplingRow>(drawn_count_);
  size_t bias_count = 0;
  size_t count_count = 0;
  for (size_t i = 0; i < slot.drawn_count; ++i) {
    bias_count += sequences[slot.rows[i].sequence].biases.size();
    count_count += CountsOf(sequences[slot.rows[i].sequence]);
  }
  bool moved = false;
  LOCKSTEP_RETURN_IF_ERROR(
      biases_.Reserve(kernels_, slot_index, bias_count, "logit biases", &moved));
  LOCKSTEP_RETURN_IF_ERROR(
      counts_.Reserve(kernels_, slot_index, count_count, "token counts", &moved));
  generation_ += moved;
  step_biases_ = biases_.part(slot_index, bias_count);
  step_counts_ = counts_.part(slot_index, count_count);
  int32_t bias = 0;
  int32_t count = 0;
  counts_drawn_ = false;
  for (size_t i = 0; i < slot.drawn_count; ++i) {
    const StepSequence& sequence = sequences[slot.rows[i].sequence];
    SamplingRow& row = sampling_.host[i] = sequence.sampling;
    std::copy(sequence.biases.begin(), sequence.biases.end(), step_biases_.host.begin() + bias);
    std::copy(sequence.counts.begin(), sequence.counts.end(), step_counts_.host.begin() + count);
    row.bias_begin = bias;
    row.count_begin = count;
    row.bias_end = bias += static_cast<int32_t>(sequence.biases.size());
    row.count_end = count += static_cast<int32_t>(CountsOf(sequence));
    if (!sequence.counts_drawn) continue;
    row.drawn_slot = drawn_slots_before_[static_cast<size_t>(sequence.drawn_by)];
    step_counts_.host[static_cast<size_t>(count) - 1] = {.id = -1};
    counts_drawn_ = true;
  }
  // Padding is greedy, which is the least work.
  std::fill(sampling_.host.begin() + slot.drawn_count, sampling_.host.end(),
            SamplingRow{.temperature = 0});
  UploadPart(kernels_, step_biases_);
  UploadPart(kernels_, step_counts_);
  return absl::OkStatus();
}

absl::Status HeadRunner::BuildLogprobs(std::span<const StepSequence> sequences, int slot_index,
                                       StepArena* inputs, Slot* slot) {
  logprob_rows_ = inputs->Take<LogprobRow>(row_count_);
  slot->logprob_rows = logprob_rows_.host;
  size_t chosen_count = 0;
  wants_top_ = false;
  bool wants_any = false;
  bool wants_all = false;
  for (size_t i = 0; i < slot->rows.size(); ++i) {
    const HeadRow& row = slot->rows[i];
    const StepSequence& sequence = sequences[row.sequence];
    const bool drawn = row.score_index == kDrawn;
    const bool wanted = !drawn || sequence.logprobs;
    const bool details = drawn ? sequence.logprobs : sequence.score_details;
    LogprobRow& logprob =
        logprob_rows_.host[i] = {.target_id = kernels::kTargetNone, .want_scaled = 0};
    if (!wanted) continue;
    logprob.target_id = drawn ? kernels::kTargetDrawn : sequence.score_targets[row.score_index];
    logprob.temperature = sequence.temperature;
    logprob.want_scaled = NeedsScaling(sequence.temperature);
    logprob.want_entropy = details && sequence.entropy;
    logprob.top_count = details ? sequence.top_count : 0;
    logprob.chosen_begin = static_cast<int32_t>(chosen_count);
    if (details) chosen_count += sequence.chosen_ids.size();
    logprob.chosen_end = static_cast<int32_t>(chosen_count);
    wants_any = true;
    wants_top_ |= logprob.top_count > 0;
    wants_all |= logprob.want_scaled != 0 || logprob.want_entropy != 0 || logprob.top_count > 0;
  }
  wants_all |= chosen_count > 0;
  logprobs_ = !wants_any ? Logprobs::kNone : wants_all ? Logprobs::kAll : Logprobs::kRaw;
  std::fill(logprob_rows_.host.begin() + slot->rows.size(), logprob_rows_.host.end(),
            LogprobRow{.target_id = kernels::kTargetNone, .want_scaled = 0});
  bool moved = false;
  LOCKSTEP_RETURN_IF_ERROR(
      chosen_ids_.Reserve(kernels_, slot_index, chosen_count, "chosen ids", &moved));
  LOCKSTEP_RETURN_IF_ERROR(
      chosen_logprobs_.Reserve(kernels_, slot_index, chosen_count, "chosen logprobs", &moved));
  generation_ += moved;
  step_chosen_ids_ = chosen_ids_.part(slot_index, chosen_count);
  step_chosen_logprobs_ = chosen_logprobs_.part(slot_index, chosen_count);
  for (size_t i = 0; i < slot->rows.size(); ++i) {
    const LogprobRow& row = logprob_rows_.host[i];
    if (row.chosen_begin == row.chosen_end) continue;
    std::ranges::copy(sequences[slot->rows[i].sequence].chosen_ids,
                      step_chosen_ids_.host.begin() + row.chosen_begin);
  }
  UploadPart(kernels_, step_chosen_ids_);
  return absl::OkStatus();
}

void HeadRunner::TakeResults(int slot_index, Slot* slot) {
  results_.Begin(slot_index);
  ids_ = results_.Take<int32_t>(drawn_count_);
  draw_errors_ = results_.Take<SampleError>(drawn_count_);
  const size_t rows = logprobs_ == Logprobs::kNone ? 0 : row_count_;
  raw_ = results_.Take<float>(rows);
  errors_ = results_.Take<SampleError>(rows);
  const size_t all_rows = logprobs_ == Logprobs::kAll ? row_count_ : 0;
  scaled_ = results_.Take<float>(all_rows);
  entropy_ = results_.Take<float>(all_rows);
  results_bytes_ = results_.used_bytes();
  top_ids_ = results_.Take<int32_t>(all_rows * kernels::kTopLogprobsMax);
  top_logprobs_ = results_.Take<float>(all_rows * kernels::kTopLogprobsMax);
  if (wants_top_) results_bytes_ = results_.used_bytes();
  slot->ids = ids_.host;
  slot->draw_errors = draw_errors_.host;
  slot->raw = raw_.host;
  slot->errors = errors_.host;
  slot->scaled = scaled_.host;
  slot->entropy = entropy_.host;
  slot->top_ids = top_ids_.host;
  slot->top_logprobs = top_logprobs_.host;
  slot->chosen_logprobs = step_chosen_logprobs_.host;
}

void HeadRunner::Enqueue() {
  // Before any piece draws: what the step before has drawn is still where this one will draw.
  if (counts_drawn_) {
    kernels_->CountDrawn({.rows = static_cast<int>(drawn_count_),
                          .row_params = sampling_.device,
                          .drawn_ids = ids_.device,
                          .counts = step_counts_.device});
  }
  const size_t piece_max = static_cast<size_t>(transformer_->options().logits_rows_max);
  for (size_t begin = 0; begin < row_count_; begin += piece_max) {
    EnqueuePiece(begin, std::min(piece_max, row_count_ - begin));
  }
}

void HeadRunner::EnqueuePiece(size_t begin, size_t count) {
  const float* logits = transformer_->Logits(identity_ ? nullptr : source_rows_.device + begin,
                                             static_cast<int>(count));
  const int vocabulary = transformer_->config().vocabulary;
  if (begin < drawn_count_) {
    kernels_->Sample({.rows = static_cast<int>(std::min(count, drawn_count_ - begin)),
                      .vocabulary = vocabulary,
                      .vocabulary_sampled = options_.vocabulary_sampled,
                      .logits = logits,
                      .row_params = sampling_.device + begin,
                      .biases = step_biases_.device,
                      .counts = step_counts_.device,
                      .ids = ids_.device + begin,
                      .errors = draw_errors_.device + begin});
  }
  if (logprobs_ == Logprobs::kNone) return;
  const bool all = logprobs_ == Logprobs::kAll;
  kernels_->Logprobs(
      {.rows = static_cast<int>(count),
       .vocabulary = vocabulary,
       .logits = logits,
       .row_params = logprob_rows_.device + begin,
       .drawn_ids = ids_.device + begin,
       .chosen_ids = step_chosen_ids_.device,
       .raw = raw_.device + begin,
       .scaled = all ? scaled_.device + begin : nullptr,
       .entropy = all ? entropy_.device + begin : nullptr,
       .top_ids = all ? top_ids_.device + begin * kernels::kTopLogprobsMax : nullptr,
       .top_logprobs = all ? top_logprobs_.device + begin * kernels::kTopLogprobsMax : nullptr,
       .chosen_logprobs = step_chosen_logprobs_.device,
       .errors = errors_.device + begin});
}

void HeadRunner::Download() {
  results_.Download(kernels_, results_bytes_);
  DownloadPart(kernels_, step_chosen_logprobs_);
}

void HeadRunner::Collect(int slot_index, std::vector<StepSequenceResult>* results) const {
  const Slot& slot = slots_[slot_index];
  results->assign(slot.wanted.size(), {});
  for (size_t i = 0; i < slot.drawn_count; ++i) {
    StepSequenceResult& result = (*results)[slot.rows[i].sequence];
    result.sampled_id = slot.ids[i];
    result.error = slot.draw_errors[i];
  }
  for (size_t i = 0; i < slot.rows.size(); ++i) {
    Store(slot, i, &(*results)[slot.rows[i].sequence]);
  }
}

// Rows of one sequence are stored in ascending order, so each array only grows at its end.
void HeadRunner::Store(const Slot& slot, size_t index, StepSequenceResult* result) const {
  const HeadRow& row = slot.rows[index];
  const Wanted& sequence = slot.wanted[row.sequence];
  const bool drawn = row.score_index == kDrawn;
  if (drawn && (!sequence.logprobs || result->error != SampleError::kNone)) return;
  if (slot.errors[index] != SampleError::kNone) result->error = slot.errors[index];
  const LogprobRow& wanted = slot.logprob_rows[index];
  LogprobBlock& block = drawn ? result->sampled : result->scored;
  block.raw.push_back(slot.raw[index]);
  block.scaled.push_back(wanted.want_scaled != 0 ? slot.scaled[index] : slot.raw[index]);
  if (!drawn && !sequence.score_details) return;
  if (sequence.entropy) block.entropy.push_back(slot.entropy[index]);
  const size_t top_begin = index * kernels::kTopLogprobsMax;
  for (size_t i = top_begin; i < top_begin + static_cast<size_t>(wanted.top_count); ++i) {
    block.top_ids.push_back(slot.top_ids[i]);
    block.top_logprobs.push_back(slot.top_logprobs[i]);
  }
  block.chosen_logprobs.insert(block.chosen_logprobs.end(),
                               slot.chosen_logprobs.begin() + wanted.chosen_begin,
                               slot.chosen_logprobs.begin() + wanted.chosen_end);
}

}  // namespace lockstep::worker
