#pragma once

#include <cstddef>
#include <cstdint>

// What attention works from beside its arguments: the list of work of one step, computed on the
// device from the step's inputs so that a captured graph serves other contents, and the sums of
// splits on their way to being merged.
namespace lockstep::kernels::cuda {

// Bounds of a step, known on the host when a graph is captured.
struct AttentionLimits {
  int rows = 0;
  int sequences = 0;
  int splits_max = 0;  // Of the longest sequence.
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// Work on a sequence that has few rows: one split of it, or all of them one after the other. The
// unit of parallel work of decode, per KV head.
struct alignas(32) AttentionUnit {
  int32_t sequence;
  int32_t split;        // The first one of the unit.
  int32_t splits;       // Of the sequence.
  int32_t partial_row;  // Packed rows of all units before this sequence's first.
  int32_t row_begin;    // The sequence's rows, at consecutive positions.
  int32_t row_count;
  int32_t kv_length;  // Keys that the last row sees, in all splits.
  int32_t run;        // Splits of the unit: 1, or `splits`.
};

// Consecutive rows of a sequence that has many, all in one page of KV: the unit of prefill, per KV
// head. An infinite or NaN value reaches the earlier rows of its tile (0 x NaN), and a cached page
// is known by the tokens that it holds: no later one may change what it holds.
struct alignas(16) AttentionTile {
  int32_t sequence;
  int32_t row_begin;
  int32_t row_count;
  int32_t kv_length;  // Keys that the last row sees.
};

struct AttentionWorkList {
  int32_t unit_count;
  int32_t tile_count;
  uint32_t units_taken;  // By CTAs that came back for more; 0 between launches.
};

// Rows of a sequence, times the query heads of a KV head, that one decode unit takes.
inline constexpr int kUnitRows = 16;

// Device pointers into one allocation.
struct AttentionWorkspace {
  AttentionWorkList* list = nullptr;
  uint8_t* zeros = nullptr;  // What fills shared memory behind the last key.
  AttentionUnit* units = nullptr;
  AttentionTile* tiles = nullptr;
  uint32_t* arrived = nullptr;      // [sequences, kv_heads] splits done; 0 between launches.
  float* partial_sums = nullptr;    // [packed rows of units, kv_heads, head_dim]
  float* partial_states = nullptr;  // [packed rows of units, kv_heads, 2]: raw maximum, row sum.
};

size_t AttentionWorkspaceBytes(const AttentionLimits& limits);

// `memory` has AttentionWorkspaceBytes and is 256-byte aligned. Its contents may be anything:
// PlanAttention sets what must be set.
AttentionWorkspace LayOutAttentionWorkspace(const AttentionLimits& limits, void* memory);

// Upper bound of the tiles that a step can list.
int TilesMax(int rows, int sequences, int tile_tokens);

}  // namespace lockstep::kernels::cuda
