#include "services/worker/model/head_runner.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

using kernels::SampleError;

// Division by one is exact, and greedy has no scale: then scaled logprobs are the raw ones.
bool NeedsScaling(float temperature) { return temperature != 0 && temperature != 1; }

// Whether top, chosen and entropy are wanted; the target's logprob always is.
bool WantsDetails(const StepSequence& sequence, bool drawn) {
  return drawn || sequence.score_details;
}

}  // namespace

HeadRunner::HeadRunner(Transformer* transformer, kernels::KernelSet* kernels,
                       int vocabulary_sampled)
    : transformer_(transformer), kernels_(kernels), vocabulary_sampled_(vocabulary_sampled) {}

absl::Status HeadRunner::Allocate() {
  const size_t rows = static_cast<size_t>(transformer_->options().logits_rows_max);
  LOCKSTEP_RETURN_IF_ERROR(device_.source_rows.Reserve(kernels_, rows, "rows for lm_head"));
  LOCKSTEP_RETURN_IF_ERROR(device_.sampling.Reserve(kernels_, rows, "sampling parameters"));
  LOCKSTEP_RETURN_IF_ERROR(device_.drawn_ids.Reserve(kernels_, rows, "drawn ids"));
  LOCKSTEP_RETURN_IF_ERROR(device_.errors.Reserve(kernels_, rows, "row errors"));
  LOCKSTEP_RETURN_IF_ERROR(device_.logprob_rows.Reserve(kernels_, rows, "logprob parameters"));
  LOCKSTEP_RETURN_IF_ERROR(device_.raw.Reserve(kernels_, rows, "raw logprobs"));
  LOCKSTEP_RETURN_IF_ERROR(device_.scaled.Reserve(kernels_, rows, "scaled logprobs"));
  LOCKSTEP_RETURN_IF_ERROR(device_.entropy.Reserve(kernels_, rows, "entropies"));
  const size_t top = rows * kernels::kTopLogprobsMax;
  LOCKSTEP_RETURN_IF_ERROR(device_.top_ids.Reserve(kernels_, top, "top ids"));
  return device_.top_logprobs.Reserve(kernels_, top, "top logprobs");
}

absl::Status HeadRunner::Run(std::span<const StepSequence> sequences,
                             std::span<const int32_t> first_rows,
                             std::vector<StepSequenceResult>* results) {
  PlanRows(sequences);
  const size_t piece_max = static_cast<size_t>(transformer_->options().logits_rows_max);
  const std::span<const HeadRow> rows = rows_;
  for (size_t begin = 0; begin < rows.size(); begin += piece_max) {
    LOCKSTEP_RETURN_IF_ERROR(RunPiece(sequences, first_rows,
                                      rows.subspan(begin, std::min(piece_max, rows.size() - begin)),
                                      results));
  }
  return kernels_->Synchronize();
}

// Drawn rows come first, those without logprobs before those with, so that both ops work on
// neighbouring rows.
void HeadRunner::PlanRows(std::span<const StepSequence> sequences) {
  rows_.clear();
  for (const bool logprobs : {false, true}) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].sample && sequences[i].logprobs == logprobs) {
        rows_.push_back({.sequence = static_cast<int>(i)});
      }
    }
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& sequence = sequences[i];
    for (size_t target = 0; target < sequence.score_targets.size(); ++target) {
      rows_.push_back({.sequence = static_cast<int>(i), .score_index = static_cast<int>(target)});
    }
  }
}

absl::Status HeadRunner::RunPiece(std::span<const StepSequence> sequences,
                                  std::span<const int32_t> first_rows,
                                  std::span<const HeadRow> rows,
                                  std::vector<StepSequenceResult>* results) {
  source_rows_.clear();
  size_t drawn_count = 0;
  size_t plain_count = 0;  // Drawn without logprobs.
  for (const HeadRow& row : rows) {
    const StepSequence& sequence = sequences[row.sequence];
    const bool drawn = row.score_index == kDrawn;
    drawn_count += drawn;
    plain_count += drawn && !sequence.logprobs;
    const int within = drawn ? static_cast<int>(sequence.tokens.size()) - 1
                             : sequence.score_begin + row.score_index;
    source_rows_.push_back(first_rows[row.sequence] + within);
  }
  device_.source_rows.Upload(kernels_, source_rows_);
  const float* logits =
      transformer_->Logits(device_.source_rows.data(), static_cast<int>(rows.size()));
  if (drawn_count > 0) {
    LOCKSTEP_RETURN_IF_ERROR(Draw(sequences, rows.first(drawn_count), logits, results));
  }
  if (plain_count < rows.size()) {
    const size_t vocabulary = static_cast<size_t>(transformer_->config().vocabulary);
    LOCKSTEP_RETURN_IF_ERROR(ComputeLogprobs(sequences, rows.subspan(plain_count),
                                             logits + plain_count * vocabulary, results));
  }
  return kernels_->Synchronize();
}

absl::Status HeadRunner::Draw(std::span<const StepSequence> sequences,
                              std::span<const HeadRow> drawn, const float* logits,
                              std::vector<StepSequenceResult>* results) {
  sampling_.clear();
  biases_.clear();
  counts_.clear();
  for (const HeadRow& row : drawn) {
    const StepSequence& sequence = sequences[row.sequence];
    kernels::SamplingRow& sampling = sampling_.emplace_back(sequence.sampling);
    sampling.bias_begin = static_cast<int32_t>(biases_.size());
    sampling.count_begin = static_cast<int32_t>(counts_.size());
    biases_.insert(biases_.end(), sequence.biases.begin(), sequence.biases.end());
    counts_.insert(counts_.end(), sequence.counts.begin(), sequence.counts.end());
    sampling.bias_end = static_cast<int32_t>(biases_.size());
    sampling.count_end = static_cast<int32_t>(counts_.size());
  }
  LOCKSTEP_RETURN_IF_ERROR(device_.biases.Reserve(kernels_, biases_.size(), "logit biases"));
  LOCKSTEP_RETURN_IF_ERROR(device_.counts.Reserve(kernels_, counts_.size(), "token counts"));
  device_.sampling.Upload(kernels_, sampling_);
  device_.biases.Upload(kernels_, biases_);
  device_.counts.Upload(kernels_, counts_);
  kernels_->Sample({.rows = static_cast<int>(drawn.size()),
                    .vocabulary = transformer_->config().vocabulary,
                    .vocabulary_sampled = vocabulary_sampled_,
                    .logits = logits,
                    .row_params = device_.sampling.data(),
                    .biases = device_.biases.data(),
                    .counts = device_.counts.data(),
                    .ids = device_.drawn_ids.data(),
                    .errors = device_.errors.data()});
  drawn_ids_.resize(drawn.size());
  errors_.resize(drawn.size());
  device_.drawn_ids.Download(kernels_, drawn_ids_);
  device_.errors.Download(kernels_, errors_);
  LOCKSTEP_RETURN_IF_ERROR(kernels_->Synchronize());
  for (size_t i = 0; i < drawn.size(); ++i) {
    StepSequenceResult& result = (*results)[drawn[i].sequence];
    result.sampled_id = drawn_ids_[i];
    result.error = errors_[i];
  }
  return absl::OkStatus();
}

absl::Status HeadRunner::PrepareLogprobs(std::span<const StepSequence> sequences,
                                         std::span<const HeadRow> rows,
                                         const std::vector<StepSequenceResult>& results) {
  logprob_rows_.clear();
  chosen_ids_.clear();
  for (const HeadRow& row : rows) {
    const StepSequence& sequence = sequences[row.sequence];
    const bool drawn = row.score_index == kDrawn;
    const bool details = WantsDetails(sequence, drawn);
    kernels::LogprobRow& logprob = logprob_rows_.emplace_back();
    logprob.target_id =
        drawn ? results[row.sequence].sampled_id : sequence.score_targets[row.score_index];
    logprob.temperature = sequence.temperature;
    logprob.want_scaled = NeedsScaling(sequence.temperature);
    logprob.want_entropy = details && sequence.entropy;
    logprob.top_count = details ? sequence.top_count : 0;
    logprob.chosen_begin = static_cast<int32_t>(chosen_ids_.size());
    if (details) {
      chosen_ids_.insert(chosen_ids_.end(), sequence.chosen_ids.begin(), sequence.chosen_ids.end());
    }
    logprob.chosen_end = static_cast<int32_t>(chosen_ids_.size());
  }
  LOCKSTEP_RETURN_IF_ERROR(device_.chosen_ids.Reserve(kernels_, chosen_ids_.size(), "chosen ids"));
  LOCKSTEP_RETURN_IF_ERROR(
      device_.chosen_logprobs.Reserve(kernels_, chosen_ids_.size(), "chosen logprobs"));
  device_.logprob_rows.Upload(kernels_, logprob_rows_);
  device_.chosen_ids.Upload(kernels_, chosen_ids_);
  return absl::OkStatus();
}

absl::Status HeadRunner::ComputeLogprobs(std::span<const StepSequence> sequences,
                                         std::span<const HeadRow> rows, const float* logits,
                                         std::vector<StepSequenceResult>* results) {
  LOCKSTEP_RETURN_IF_ERROR(PrepareLogprobs(sequences, rows, *results));
  const auto any = [this](auto wanted) {
    return std::any_of(logprob_rows_.begin(), logprob_rows_.end(), wanted);
  };
  using Row = kernels::LogprobRow;
  const bool scaled = any([](const Row& row) { return row.want_scaled != 0; });
  const bool entropy = any([](const Row& row) { return row.want_entropy != 0; });
  const bool top = any([](const Row& row) { return row.top_count > 0; });
  kernels_->Logprobs({.rows = static_cast<int>(rows.size()),
                      .vocabulary = transformer_->config().vocabulary,
                      .logits = logits,
                      .row_params = device_.logprob_rows.data(),
                      .chosen_ids = device_.chosen_ids.data(),
                      .raw = device_.raw.data(),
                      .scaled = scaled ? device_.scaled.data() : nullptr,
                      .entropy = entropy ? device_.entropy.data() : nullptr,
                      .top_ids = top ? device_.top_ids.data() : nullptr,
                      .top_logprobs = top ? device_.top_logprobs.data() : nullptr,
                      .chosen_logprobs = device_.chosen_logprobs.data(),
                      .errors = device_.errors.data()});
  const auto download = [this](const auto& from, auto* to, size_t count) {
    to->resize(count);
    from.Download(kernels_, *to);
  };
  const size_t top_count = top ? rows.size() * kernels::kTopLogprobsMax : 0;
  download(device_.raw, &raw_, rows.size());
  download(device_.scaled, &scaled_, scaled ? rows.size() : 0);
  download(device_.entropy, &entropy_, entropy ? rows.size() : 0);
  download(device_.top_ids, &top_ids_, top_count);
  download(device_.top_logprobs, &top_logprobs_, top_count);
  download(device_.chosen_logprobs, &chosen_logprobs_, chosen_ids_.size());
  download(device_.errors, &errors_, rows.size());
  LOCKSTEP_RETURN_IF_ERROR(kernels_->Synchronize());
  for (size_t i = 0; i < rows.size(); ++i) {
    StoreLogprobs(sequences[rows[i].sequence], rows[i], i, &(*results)[rows[i].sequence]);
  }
  return absl::OkStatus();
}

// Rows of one sequence are stored in ascending order, so each array only grows at its end.
void HeadRunner::StoreLogprobs(const StepSequence& sequence, const HeadRow& row, size_t index,
                               StepSequenceResult* result) const {
  const bool drawn = row.score_index == kDrawn;
  if (drawn && result->error != SampleError::kNone) return;
  if (errors_[index] != SampleError::kNone) result->error = errors_[index];
  const kernels::LogprobRow& wanted = logprob_rows_[index];
  LogprobBlock& block = drawn ? result->sampled : result->scored;
  block.raw.push_back(raw_[index]);
  block.scaled.push_back(wanted.want_scaled != 0 ? scaled_[index] : raw_[index]);
  if (!WantsDetails(sequence, drawn)) return;
  if (sequence.entropy) block.entropy.push_back(entropy_[index]);
  const size_t top_begin = index * kernels::kTopLogprobsMax;
  for (size_t i = top_begin; i < top_begin + wanted.top_count; ++i) {
    block.top_ids.push_back(top_ids_[i]);
    block.top_logprobs.push_back(top_logprobs_[i]);
  }
  block.chosen_logprobs.insert(block.chosen_logprobs.end(),
                               chosen_logprobs_.begin() + wanted.chosen_begin,
                               chosen_logprobs_.begin() + wanted.chosen_end);
}

}  // namespace lockstep::worker
