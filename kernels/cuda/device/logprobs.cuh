#pragma once

#include <cuda_runtime.h>

#include "kernels/api/sampling.h"
#include "kernels/cuda/device/select.cuh"

// Log-probabilities, one group of CTAs a row. M = max, exact; S = T(exp(z - M)) by id: a warp sums
// a tile of 128 ids, then T over the tiles' sums; logprob = RN(RN(z - M) - log S). The row is read
// from global memory once, plus single logits for results. Placement-invariant; the bits of the CPU
// backend.
namespace lockstep::kernels::cuda {

// Sums of the row that T gives, one array of tiles each.
enum TileSums : int { kRawSum, kEntropySum, kScaledSum };

template <typename Group>
struct LogprobShared {
  SelectShared select;
  unsigned long long top[kTopLogprobsMax];  // Key and complement of the id, in no order.
  int top_count;
  PartSummary warps[kVocabularyWarps];
  PartSummary summary;
  typename Group::Loading loading;
  float warp_sums[kTileSums][32];
};

// The log-softmax of a logit, given the row's maximum and the logarithm of the sum. Never above 0.
__device__ __forceinline__ float LogSoftmax(float z, float max, float log_sum) {
  return fmaxf(-kHighest, (z - max) - log_sum);
}

template <typename T>
__device__ __forceinline__ void StoreIfWanted(T* array, int row, T value) {
  if (array != nullptr) array[row] = value;
}

// What a row without a distribution gets, and what is not wanted. For the threads of one CTA.
__device__ __forceinline__ void StoreDefaults(const LogprobArgs& args, const LogprobRow& params,
                                              int row, bool failed) {
  const int thread = static_cast<int>(threadIdx.x);
  const float value = failed ? -kHighest : 0.0f;
  if (thread == 0) {
    StoreIfWanted(args.raw, row, value);
    StoreIfWanted(args.scaled, row, value);
    StoreIfWanted(args.entropy, row, value);
    args.errors[row] = failed ? SampleError::kNonFiniteLogits : SampleError::kNone;
  }
  if (thread < kTopLogprobsMax && args.top_ids != nullptr) {
    args.top_ids[row * kTopLogprobsMax + thread] = -1;
    args.top_logprobs[row * kTopLogprobsMax + thread] = thread < params.top_count ? value : 0.0f;
  }
  if (!failed) return;
  for (int i = params.chosen_begin + thread; i < params.chosen_end; i += kVocabularyThreads) {
    args.chosen_logprobs[i] = value;
  }
}

// Lists this CTA's ids of the row's largest, in no order.
template <typename Group>
__device__ __forceinline__ void ListTop(const RowPart& part, LogprobShared<Group>& shared,
                                        float max, int count) {
  if (threadIdx.x == 0) shared.top_count = 0;
  int turn = 0;
  const Cut cut = SelectPrefix<Group>(
      part, shared.select, turn, max, [](float, int) { return true; }, CountWeight{},
      [&](Weight total) { return min(static_cast<Weight>(count), total); });
  for (int i = static_cast<int>(threadIdx.x); i < part.count; i += kVocabularyThreads) {
    const int id = part.first + i;
    if (!IsKept(cut, part.z[i], id)) continue;
    shared.top[atomicAdd(&shared.top_count, 1)] =
        static_cast<unsigned long long>(KeyOf(part.z[i])) << 32 | static_cast<uint32_t>(~id);
  }
}

// Sorts what all CTAs listed by counting for each how many are above it. For one CTA.
template <typename Group>
__device__ __forceinline__ void StoreTop(const LogprobArgs& args, const float* logits, int row,
                                         const LogprobShared<Group>& shared, float max,
                                         float log_sum) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < Group::Ctas() * kTopLogprobsMax; at += kVocabularyThreads) {
    const LogprobShared<Group>& list = *Group::Remote(&shared, at / kTopLogprobsMax);
    if (at % kTopLogprobsMax >= list.top_count) continue;
    const unsigned long long mine = list.top[at % kTopLogprobsMax];
    int above = 0;
    for (int rank = 0; rank < Group::Ctas(); ++rank) {
      const LogprobShared<Group>& other = *Group::Remote(&shared, rank);
      for (int i = 0; i < other.top_count; ++i) above += other.top[i] > mine ? 1 : 0;
    }
    const int32_t id = static_cast<int32_t>(~static_cast<uint32_t>(mine));
    args.top_ids[row * kTopLogprobsMax + above] = id;
    args.top_logprobs[row * kTopLogprobsMax + above] = LogSoftmax(logits[id], max, log_sum);
  }
}

// The three sums over this CTA's tiles, as far as the row wants them.
__device__ __forceinline__ void SumPart(const RowPart& part, float* tile_sums, float max,
                                        bool entropy, bool scaled, float temperature) {
  const int tiles = part.ids / kTileIds;
  SumTiles(part, tile_sums + kRawSum * tiles, [&](float z) { return ExpBelowMax(z, max); });
  if (entropy) {
    SumTiles(part, tile_sums + kEntropySum * tiles, [&](float z) {
      const float e = ExpBelowMax(z, max);
      return e > 0 ? e * (z - max) : 0.0f;
    });
  }
  if (scaled) {
    const float scaled_max = Scaled(max, temperature);
    SumTiles(part, tile_sums + kScaledSum * tiles,
             [&](float z) { return ExpBelowMax(Scaled(z, temperature), scaled_max); });
  }
}

// One row. `memory` has room for this CTA's part of it and kTileSums sums of each of its tiles.
template <typename Group>
__device__ __forceinline__ void LogprobsOfRow(const LogprobArgs& args, int row, float* memory,
                                              LogprobShared<Group>& shared) {
  const int rank = Group::Rank();
  LogprobRow params = args.row_params[row];
  if (params.target_id == kTargetDrawn) params.target_id = args.drawn_ids[row];
  const float* logits = args.logits + static_cast<size_t>(row) * args.vocabulary;
  const RowPart part = PartOfRow<Group>(memory, args.vocabulary);
  PartSummary mine{-kInfinity, 0};
  Group::Load(logits, part, shared.loading, [&](float z) {
    mine.max = fmaxf(mine.max, z);
    mine.bad |= static_cast<int32_t>(!(z < kInfinity));
  });
  const PartSummary whole = SummaryOfRow<Group>(mine, shared.warps, &shared.summary);
  const bool failed = whole.bad != 0 || whole.max == -kInfinity;
  if (rank == 0) StoreDefaults(args, params, row, failed);
  if (failed) {
    Group::Sync();  // Nobody reads this CTA's summary any more.
    return;
  }
  const float max = whole.max;
  const float temperature = params.temperature == 0 ? 1.0f : params.temperature;
  const bool target = params.target_id >= 0;
  const bool scaled = params.want_scaled != 0 && args.scaled != nullptr && target;
  const bool entropy = params.want_entropy != 0;
  const bool top = params.top_count > 0;
  const int tiles_per_cta = part.ids / kTileIds;
  float* const tile_sums = part.z + part.ids;
  SumPart(part, tile_sums, max, entropy, scaled && temperature != 1.0f, temperature);
  if (top) ListTop(part, shared, max, params.top_count);
  Group::Sync();  // Sums and lists of all CTAs are there.
  if (rank != 0) {
    Group::Sync();  // Nobody reads this CTA's shared memory any more.
    return;
  }
  RowSums sums[kTileSums];
#pragma unroll
  for (int which = 0; which < kTileSums; ++which) {
    if (which == kEntropySum && !entropy) continue;
    if (which == kScaledSum && !(scaled && temperature != 1.0f)) continue;
    sums[which] = GatherSums<Group>(tile_sums + which * tiles_per_cta, tiles_per_cta,
                                    TilesOf(args.vocabulary));
  }
  // The others leave as soon as they can, and make room for the next row.
  if (!top) Group::Sync();
  const float sum = TreeOfRow(sums[kRawSum], shared.warp_sums[kRawSum]);
  const float log_sum = Log(sum);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0 && target) {
    StoreIfWanted(args.raw, row, LogSoftmax(logits[params.target_id], max, log_sum));
  }
  if (entropy) {
    const float weighted = TreeOfRow(sums[kEntropySum], shared.warp_sums[kEntropySum]);
    if (thread == 0) args.entropy[row] = log_sum - __fdiv_rn(weighted, sum);
  }
  if (scaled) {
    // At temperature 1 the scaled row has the raw row's exponentials.
    const float scaled_log_sum =
        temperature == 1.0f ? log_sum
                            : Log(TreeOfRow(sums[kScaledSum], shared.warp_sums[kScaledSum]));
    if (thread == 0) {
      args.scaled[row] = LogSoftmax(Scaled(logits[params.target_id], temperature),
                                    Scaled(max, temperature), scaled_log_sum);
    }
  }
  for (int i = params.chosen_begin + thread; i < params.chosen_end; i += kVocabularyThreads) {
    args.chosen_logprobs[i] = LogSoftmax(logits[args.chosen_ids[i]], max, log_sum);
  }
  if (!top) return;
  StoreTop(args, logits, row, shared, max, log_sum);
  Group::Sync();  // Nobody of the others is read any more.
}

}  // namespace lockstep::kernels::cuda
