#include "services/worker/model/step_arrays.h"

#include <algorithm>

#include "common/base/check.h"

namespace lockstep::worker {

size_t StepArrays::BytesMax() const {
  const size_t rows = static_cast<size_t>(limits_.rows_max);
  const size_t sequences = static_cast<size_t>(limits_.sequences_max);
  return 3 * StepArena::BytesOf<int32_t>(rows) + StepArena::BytesOf<int32_t>(sequences + 1) +
         StepArena::BytesOf<int32_t>(sequences * static_cast<size_t>(BlocksMax()));
}

void StepArrays::Build(std::span<const StepSequence> sequences, int decode_rows,
                       std::span<const int32_t> drawn_slots, StepArena* arena) {
  LOCKSTEP_CHECK_LE(sequences.size(), static_cast<size_t>(limits_.sequences_max));
  int rows = 0;
  for (const StepSequence& sequence : sequences) {
    CheckSequence(sequence);
    rows += static_cast<int>(sequence.tokens.size());
    LOCKSTEP_CHECK_LE(rows, limits_.rows_max);
  }
  // The table's width is always the same, as a captured graph needs it.
  const size_t width = static_cast<size_t>(BlocksMax());
  const int padded = std::max(rows, decode_rows);
  shape_ = {.rows = padded,
            .sequences = std::max(static_cast<int>(sequences.size()), decode_rows),
            .blocks_max = BlocksMax()};
  const auto ids = arena->Take<int32_t>(static_cast<size_t>(padded));
  const auto positions = arena->Take<int32_t>(static_cast<size_t>(padded));
  const auto row_sequence = arena->Take<int32_t>(static_cast<size_t>(padded));
  const auto query_start = arena->Take<int32_t>(static_cast<size_t>(shape_.sequences) + 1);
  const auto table = arena->Take<int32_t>(static_cast<size_t>(shape_.sequences) * width);
  size_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& sequence = sequences[i];
    query_start.host[i] = static_cast<int32_t>(row);
    for (size_t t = 0; t < sequence.tokens.size(); ++t, ++row) {
      ids.host[row] = sequence.drawn_by < 0 ? sequence.tokens[t]
                                            : kernels::DrawnId(drawn_slots[sequence.drawn_by]);
      positions.host[row] = static_cast<int32_t>(sequence.position) + static_cast<int32_t>(t);
      row_sequence.host[row] = static_cast<int32_t>(i);
    }
    // Nobody looks at entries behind a sequence's last block.
    std::copy_n(sequence.blocks.begin(), BlocksOf(sequence), table.host.begin() + i * width);
  }
  std::fill(query_start.host.begin() + sequences.size(), query_start.host.end(), rows);
  std::fill(ids.host.begin() + rows, ids.host.end(), 0);
  std::fill(positions.host.begin() + rows, positions.host.end(), 0);
  std::fill(row_sequence.host.begin() + rows, row_sequence.host.end(), -1);
  query_start_ = query_start.host.first(sequences.size() + 1);
  inputs_ = {.token_ids = ids.device,
             .positions = positions.device,
             .row_sequence = row_sequence.device,
             .query_start = query_start.device,
             .block_table = table.device};
}

int StepArrays::BlocksMax() const {
  return (limits_.context_tokens_max + limits_.kv_block_tokens - 1) / limits_.kv_block_tokens;
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
  // A token that is not known is looked at on the device.
  LOCKSTEP_CHECK(sequence.drawn_by < 0 || sequence.tokens.size() == 1);
  LOCKSTEP_CHECK(sequence.drawn_by >= 0 || !sequence.counts_drawn);
  const auto tokens = sequence.drawn_by < 0 ? sequence.tokens : std::span<const int32_t>();
  for (const std::span<const int32_t> ids : {tokens, sequence.score_targets, sequence.chosen_ids}) {
    for (const int32_t id : ids) {
      LOCKSTEP_CHECK(id >= 0 && id < limits_.vocabulary) << "token id " << id;
    }
  }
}

}  // namespace lockstep::worker
