#include "services/worker/model/step_arrays.h"

#include <algorithm>

#include "common/base/check.h"

namespace lockstep::worker {

absl::Status StepArrays::Allocate(kernels::KernelSet* kernels) {
  const size_t blocks_max =
      (limits_.context_tokens_max + limits_.kv_block_tokens - 1) / limits_.kv_block_tokens;
  const size_t count =
      size_t{3} * limits_.rows_max + limits_.sequences_max + 1 + limits_.sequences_max * blocks_max;
  host_.reserve(count);
  return device_.Reserve(kernels, count, "step inputs");
}

void StepArrays::Build(std::span<const StepSequence> sequences) {
  LOCKSTEP_CHECK_LE(sequences.size(), static_cast<size_t>(limits_.sequences_max));
  shape_ = {.sequences = static_cast<int>(sequences.size())};
  for (const StepSequence& sequence : sequences) {
    CheckSequence(sequence);
    shape_.rows += static_cast<int>(sequence.tokens.size());
    shape_.blocks_max = std::max(shape_.blocks_max, BlocksOf(sequence));
    LOCKSTEP_CHECK_LE(shape_.rows, limits_.rows_max);
  }
  host_.assign(block_table_begin() + size_t(shape_.sequences) * shape_.blocks_max, 0);
  int row = 0;
  for (int i = 0; i < shape_.sequences; ++i) {
    const StepSequence& sequence = sequences[i];
    host_[query_start_begin() + i] = row;
    for (size_t t = 0; t < sequence.tokens.size(); ++t, ++row) {
      host_[row] = sequence.tokens[t];
      host_[positions_begin() + row] = static_cast<int32_t>(sequence.position + t);
      host_[row_sequence_begin() + row] = i;
    }
    std::copy_n(sequence.blocks.begin(), BlocksOf(sequence),
                host_.begin() + block_table_begin() + size_t(i) * shape_.blocks_max);
  }
  host_[query_start_begin() + shape_.sequences] = row;
}

void StepArrays::Upload(kernels::KernelSet* kernels) {
  device_.Upload(kernels, std::span<const int32_t>(host_));
}

kernels::StepInputs StepArrays::inputs() const {
  const int32_t* data = device_.data();
  return {.token_ids = data,
          .positions = data + positions_begin(),
          .row_sequence = data + row_sequence_begin(),
          .query_start = data + query_start_begin(),
          .block_table = data + block_table_begin()};
}

std::span<const int32_t> StepArrays::query_start() const {
  return std::span<const int32_t>(host_).subspan(query_start_begin(), shape_.sequences + 1);
}

int StepArrays::BlocksOf(const StepSequence& sequence) const {
  const int64_t tokens = sequence.position + static_cast<int64_t>(sequence.tokens.size());
  return static_cast<int>((tokens + limits_.kv_block_tokens - 1) / limits_.kv_block_tokens);
}

void StepArrays::CheckSequence(const StepSequence& sequence) const {
  LOCKSTEP_CHECK(!sequence.tokens.empty());
  LOCKSTEP_CHECK_GE(sequence.position, 0);
  LOCKSTEP_CHECK_LE(sequence.position + static_cast<int64_t>(sequence.tokens.size()),
                    limits_.context_tokens_max);
  LOCKSTEP_CHECK_GE(sequence.score_begin, 0);
  LOCKSTEP_CHECK_LE(sequence.score_begin + sequence.score_targets.size(), sequence.tokens.size());
  LOCKSTEP_CHECK_LE(sequence.top_count, kernels::kTopLogprobsMax);
  LOCKSTEP_CHECK_GE(sequence.blocks.size(), static_cast<size_t>(BlocksOf(sequence)));
  for (const int32_t block : sequence.blocks.first(BlocksOf(sequence))) {
    LOCKSTEP_CHECK(block >= 0 && block < limits_.kv_blocks) << "KV block " << block;
  }
  for (const std::span<const int32_t> ids :
       {sequence.tokens, sequence.score_targets, sequence.chosen_ids}) {
    for (const int32_t id : ids) {
      LOCKSTEP_CHECK(id >= 0 && id < limits_.vocabulary) << "token id " << id;
    }
  }
}

}  // namespace lockstep::worker
