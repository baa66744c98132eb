#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device/vocabulary_sm90.cuh"

// Exact selection over a row that a cluster holds: the shortest prefix, in order of (logit
// descending, id ascending), whose weights reach a target. Weights are integers, so that no order
// of adding them shows; the cut is narrowed digit by digit, never by sorting.
namespace lockstep::kernels::cuda {

using Weight = unsigned long long;

// The last id of the prefix.
struct Cut {
  uint32_t key = 0;
  int32_t id = 0x7FFFFFFF;
};

__device__ __forceinline__ bool IsKept(const Cut& cut, float z, int id) {
  const uint32_t key = KeyOf(z);
  return key > cut.key || (key == cut.key && id <= cut.id);
}

// Where the running sum over bins reached the target.
struct Crossing {
  int bin;
  Weight before;  // Sum of all bins in front of it.
  Weight inside;
};

constexpr int kLinearBins = 1024;
constexpr int kDigitBins = 256;
// Linear bins have this width in logits; the last one holds all that is below 32.
constexpr float kBinsPerUnit = 32;

struct SelectShared {
  // Two, so that one cluster barrier a pass is enough: nobody fills a table anew before all CTAs
  // have passed the barrier after they read it.
  Weight bins[2][kLinearBins];
  Weight warp_sums[kVocabularyWarps];
  Crossing crossing;
};

// One pass: bins all ids of the row and finds the crossing. weigh(z, id, bin) sets the bin where it
// returns a weight that is not 0; target(total) is in [1, total].
template <int kBins, typename Weigh, typename Target>
__device__ Crossing FindCrossing(const RowPart& part, SelectShared& shared, int turn,
                                 const Weigh& weigh, const Target& target) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  Weight* const bins = shared.bins[turn % 2];
  for (int i = thread; i < kBins; i += kVocabularyThreads) bins[i] = 0;
  __syncthreads();  // The table is empty.
  // Most ids of a long tail meet in the last bin, where they would wait for each other.
  Weight last = 0;
  for (int i = thread; i < part.count; i += kVocabularyThreads) {
    int bin = 0;
    const Weight weight = weigh(part.z[i], part.first + i, bin);
    if (weight == 0) continue;
    if (bin == kBins - 1) {
      last += weight;
    } else {
      atomicAdd(bins + bin, weight);
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) last += __shfl_xor_sync(0xFFFFFFFF, last, step);
  if (lane == 0 && last != 0) atomicAdd(bins + kBins - 1, last);
  SyncCluster();  // Tables of all CTAs are full.

  constexpr int kEach = (kBins + kVocabularyThreads - 1) / kVocabularyThreads;
  Weight mine[kEach] = {};
  Weight sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int bin = thread * kEach + i;
    if (bin >= kBins) continue;
    for (int rank = 0; rank < CtasInCluster(); ++rank) mine[i] += RemoteShared(bins, rank)[bin];
    sum += mine[i];
  }
  Weight running = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Weight other = __shfl_up_sync(0xFFFFFFFF, running, step);
    if (lane >= step) running += other;
  }
  if (lane == 31) shared.warp_sums[thread / 32] = running;
  __syncthreads();  // Sums of warps are there.
  Weight before = running - sum;
  Weight total = 0;
  for (int warp = 0; warp < kVocabularyWarps; ++warp) {
    if (warp < thread / 32) before += shared.warp_sums[warp];
    total += shared.warp_sums[warp];
  }
  const Weight wanted = target(total);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < wanted && before + mine[i] >= wanted) {
      shared.crossing = {thread * kEach + i, before, mine[i]};
    }
    before += mine[i];
  }
  __syncthreads();  // The crossing is there.
  return shared.crossing;
}

// The cut of the prefix whose weights reach target(total). has(z, id) says who takes part, and
// weight(z) is what he weighs, the same for equal logits. `max` is the row's maximum; `turn` counts
// the passes over `shared`.
template <typename Has, typename WeightOf, typename Target>
__device__ Cut SelectPrefix(const RowPart& part, SelectShared& shared, int& turn, float max,
                            const Has& has, const WeightOf& weight_of, const Target& target) {
  // Far more even than the digits of a key, which begin with an exponent. Subtraction and product
  // round monotonically, so that bins follow the order of logits.
  const auto linear_bin = [&](float z) {
    return min(kLinearBins - 1, __float2int_rz((max - z) * kBinsPerUnit));
  };
  Weight remaining = 0;
  Crossing crossing = FindCrossing<kLinearBins>(
      part, shared, turn++,
      [&](float z, int id, int& bin) -> Weight {
        bin = linear_bin(z);
        return has(z, id) ? weight_of(z) : 0;
      },
      [&](Weight total) { return remaining = target(total); });
  const int linear = crossing.bin;
  Cut cut;
  for (int shift = 24; shift >= 0; shift -= 8) {
    remaining -= crossing.before;
    const uint32_t prefix = cut.key;
    crossing = FindCrossing<kDigitBins>(
        part, shared, turn++,
        [&](float z, int id, int& bin) -> Weight {
          const uint32_t key = KeyOf(z);
          bin = 255 - static_cast<int>(key >> shift & 255);
          const bool here =
              linear_bin(z) == linear && (shift == 24 || key >> (shift + 8) == prefix);
          return here && has(z, id) ? weight_of(z) : 0;
        },
        [&](Weight) { return remaining; });
    cut.key = prefix << 8 | static_cast<uint32_t>(255 - crossing.bin);
  }
  remaining -= crossing.before;
  // Equal logits weigh the same: so many of them are kept, those of the lowest ids.
  const Weight each = weight_of(LogitOfKey(cut.key));
  Weight kept = (remaining + each - 1) / each;
  if (kept * each == crossing.inside) return cut;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    crossing = FindCrossing<kDigitBins>(
        part, shared, turn++,
        [&](float z, int id, int& bin) -> Weight {
          bin = id >> shift & 255;
          const bool here = KeyOf(z) == cut.key &&
                            (shift == 24 || static_cast<uint32_t>(id) >> (shift + 8) == prefix);
          return here && has(z, id) ? 1 : 0;
        },
        [&](Weight) { return kept; });
    kept -= crossing.before;
    prefix = prefix << 8 | static_cast<uint32_t>(crossing.bin);
  }
  cut.id = static_cast<int32_t>(prefix);
  return cut;
}

}  // namespace lockstep::kernels::cuda
