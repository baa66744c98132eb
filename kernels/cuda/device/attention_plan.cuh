#pragma once

#include "kernels/cuda/device/attention_order.cuh"
#include "kernels/cuda/device/attention_parameters.cuh"

// Lists the work of a step from its inputs, in one CTA: sequences with few rows as units of a
// split, the others as tiles of rows. The lists say who computes what, never in which order sums
// are added.
namespace lockstep::kernels::cuda {

inline constexpr int kPlanThreads = 1024;

// What a sequence adds to the lists.
struct PlanCounts {
  int units;
  int tiles;
  int partial_rows;
};

__device__ __forceinline__ PlanCounts operator+(const PlanCounts& a, const PlanCounts& b) {
  return {a.units + b.units, a.tiles + b.tiles, a.partial_rows + b.partial_rows};
}

__device__ __forceinline__ PlanCounts CountsOfLane(const PlanCounts& counts, int lane) {
  return {__shfl_sync(0xFFFFFFFF, counts.units, lane), __shfl_sync(0xFFFFFFFF, counts.tiles, lane),
          __shfl_sync(0xFFFFFFFF, counts.partial_rows, lane)};
}

// Sums of the counts of the lanes up to this one.
__device__ __forceinline__ PlanCounts CountsThrough(PlanCounts sum, int lane) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const PlanCounts other = {__shfl_up_sync(0xFFFFFFFF, sum.units, distance),
                              __shfl_up_sync(0xFFFFFFFF, sum.tiles, distance),
                              __shfl_up_sync(0xFFFFFFFF, sum.partial_rows, distance)};
    if (lane >= distance) sum = sum + other;
  }
  return sum;
}

// Sums of the counts of the threads before this one; `total` becomes that of all threads.
__device__ __forceinline__ PlanCounts CountsBefore(const PlanCounts& mine, PlanCounts& total) {
  static_assert(kPlanThreads == 32 * 32, "one warp looks at the sums of all");
  __shared__ PlanCounts warp_sums[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const PlanCounts sum = CountsThrough(mine, lane);
  __syncthreads();  // Nobody still reads the sums of the last round.
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();  // All warps' sums are there.
  const PlanCounts warps = CountsThrough(warp_sums[lane], lane);
  total = CountsOfLane(warps, 31);
  PlanCounts before = CountsOfLane(warps, max(warp - 1, 0));
  if (warp == 0) before = {0, 0, 0};
  before = before + sum;
  return {before.units - mine.units, before.tiles - mine.tiles,
          before.partial_rows - mine.partial_rows};
}

// How sequences with few rows become units.
struct UnitChoice {
  int rows_max;          // Packed rows of a unit; 0: all sequences are tiles.
  int splits_whole_max;  // A sequence of no more splits is one unit.
  int tail_tokens_max;   // So is one of two splits whose second has no more keys.
};

__device__ __forceinline__ int UnitsOf(const UnitChoice& choice, int kv_length, int split) {
  const int splits = (kv_length + split - 1) / split;
  if (splits <= choice.splits_whole_max) return min(splits, 1);
  return splits == 2 && kv_length - split <= choice.tail_tokens_max ? 1 : splits;
}

// Rows of the tile that begins `done` rows behind a sequence's first one.
__device__ __forceinline__ int TileRows(int first_position, int rows, int done, int tile_tokens) {
  const int rest_of_page = kPageTokens - (first_position + done) % kPageTokens;
  return min(tile_tokens, min(rest_of_page, rows - done));
}

__device__ __forceinline__ int TilesOfRows(int first_position, int rows, int tile_tokens) {
  int tiles = 0;
  for (int done = 0; done < rows; ++tiles) {
    done += TileRows(first_position, rows, done, tile_tokens);
  }
  return tiles;
}

__global__ void __launch_bounds__(kPlanThreads)
    AttentionPlanKernel(const __grid_constant__ AttentionParameters p, UnitChoice choice) {
  const AttentionWorkspace& to = p.workspace;
  const int thread = static_cast<int>(threadIdx.x);
  WaitForKernels();
  AllowNextKernel();
  static_assert(kSlabElements * 2 / sizeof(uint64_t) == kPlanThreads, "one store a thread");
  reinterpret_cast<uint64_t*>(to.zeros)[thread] = 0;
  for (int i = thread; i < p.sequences * p.pool.kv_heads; i += kPlanThreads) to.arrived[i] = 0;

  PlanCounts carried = {0, 0, 0};
  for (int first = 0; first < p.sequences; first += kPlanThreads) {
    const int sequence = first + thread;
    const bool exists = sequence < p.sequences;
    const int row_begin = exists ? p.query_start[sequence] : 0;
    const int rows = exists ? p.query_start[sequence + 1] - row_begin : 0;
    const int first_position = rows > 0 ? p.positions[row_begin] : 0;
    const int kv_length = first_position + rows;
    const int splits = (kv_length + p.split_kv_size - 1) / p.split_kv_size;
    // Like a tile, a unit stays in one page.
    const bool few = rows * p.group <= choice.rows_max &&
                     (rows <= 1 || first_position % kPageTokens + rows <= kPageTokens);
    PlanCounts mine = {0, 0, 0};
    if (few) {
      mine.units = UnitsOf(choice, kv_length, p.split_kv_size);
      // What one unit computes alone is never partial.
      mine.partial_rows = mine.units > 1 ? mine.units * rows * p.group : 0;
    } else {
      mine.tiles = TilesOfRows(first_position, rows, p.tile_tokens);
    }
    PlanCounts total;
    const PlanCounts at = carried + CountsBefore(mine, total);
    const int run = mine.units == 1 ? splits : 1;
    for (int split = 0; split < mine.units; ++split) {
      to.units[at.units + split] = {sequence,  split, splits,    at.partial_rows,
                                    row_begin, rows,  kv_length, run};
    }
    // Late rows see the most keys and go first.
    for (int tile = mine.tiles - 1, done = 0; tile >= 0; --tile) {
      const int count = TileRows(first_position, rows, done, p.tile_tokens);
      to.tiles[at.tiles + tile] = {sequence, row_begin + done, count,
                                   first_position + done + count};
      done += count;
    }
    carried = carried + total;
  }
  if (thread == 0) *to.list = {carried.units, carried.tiles, 0};
}

}  // namespace lockstep::kernels::cuda
