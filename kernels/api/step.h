#pragma once

#include <cstdint>

namespace lockstep::kernels {

// Shape of one forward step that the host knows. Rows are tokens; a sequence contributes one row
// (decode) or a chunk of consecutive rows (prefill, score). No op may let these counts reach the
// order of an addition.
struct StepShape {
  int rows = 0;
  int sequences = 0;
  int blocks_max = 0;  // Row length of the block table.
};

// Per-row and per-sequence inputs of one step, in the backend's memory, so that a captured graph
// can be replayed with other contents. Rows of one sequence are adjacent and ascend by position.
struct StepInputs {
  const int32_t* token_ids = nullptr;  // [rows] As EmbeddingArgs::ids.
  const int32_t* drawn_ids = nullptr;  // As EmbeddingArgs::drawn_ids.
  const int32_t* positions = nullptr;  // [rows] absolute position of the row's token, from 0.
  const int32_t* row_sequence =
      nullptr;                           // [rows] index into the arrays below; -1 is a padding row.
  const int32_t* query_start = nullptr;  // [sequences + 1] first row of each sequence.
  const int32_t* block_table =
      nullptr;  // [sequences, blocks_max] KV block of each kv_block tokens.
};

}  // namespace lockstep::kernels
