#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device/vocabulary.cuh"

// Exact selection over a row that a group of CTAs holds: the shortest prefix, in order of (logit
// descending, id ascending), whose weights reach a target. Weights are integers, so that no order
// of adding them shows; the cut is narrowed digit by digit, never by sorting.
namespace lockstep::kernels::cuda {

using Weight = unsigned long long;

// What an id weighs, as a function of its logit. A table adds the limbs of a weight,
// Group::kLimbBits each, one by one: shared memory has no fast 64-bit addition. The last limb takes
// the rest.
struct CountWeight {
  static constexpr int kLimbs = 1;
  __device__ __forceinline__ Weight operator()(float) const { return 1; }
};

// q of top-p: floor(e * 2^40).
struct MassWeight {
  static constexpr int kLimbs = 3;
  float max;
  __device__ __forceinline__ Weight operator()(float z) const {
    return __float2ull_rz(ExpBelowMax(z, max) * 0x1p40f);
  }
};

// The last id of the prefix.
struct Cut {
  uint32_t key;
  int32_t id;
};

// Everything is in front of it.
constexpr Cut kNoCut{0, 0x7FFFFFFF};

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
// So many ids of a bin are looked at one by one.
constexpr int kFewMax = kVocabularyThreads;

struct FewEntry {
  Weight order;  // Key and complement of the id.
  Weight weight;
};

// Sums of limbs, which stay below 2^32, or lists of few ids.
union SelectTable {
  uint32_t bins[3][kLinearBins];
  struct {
    Weight count;
    Weight order[kFewMax];
  } list;
  FewEntry few[kFewMax];
};

struct SelectShared {
  // Two, so that one barrier of the group a pass is enough: nobody fills a table anew before all
  // CTAs have passed the barrier after they read it.
  SelectTable tables[2];
  Weight warp_sums[kVocabularyWarps];
  Crossing crossing;
  Cut cut;
};

template <typename Group, int kLimbs>
__device__ __forceinline__ void AddToBin(SelectTable& table, int bin, Weight weight) {
  constexpr Weight kMask = (Weight{1} << Group::kLimbBits) - 1;
#pragma unroll
  for (int limb = 0; limb < kLimbs; ++limb) {
    const Weight rest = weight >> (Group::kLimbBits * limb);
    const uint32_t part = static_cast<uint32_t>(limb + 1 < kLimbs ? rest & kMask : rest);
    if (part != 0) atomicAdd(&table.bins[limb][bin], part);
  }
}

// One pass: bins all ids of the row and finds the crossing. weigh(z, id, bin) sets the bin where it
// returns a weight that is not 0; target(total) is in [1, total].
template <typename Group, int kBins, int kLimbs, typename Weigh, typename Target>
__device__ Crossing FindCrossing(const RowPart& part, SelectShared& shared, int turn,
                                 const Weigh& weigh, const Target& target) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  SelectTable& table = shared.tables[turn % 2];
  for (int i = thread; i < kBins; i += kVocabularyThreads) {
#pragma unroll
    for (int limb = 0; limb < kLimbs; ++limb) table.bins[limb][i] = 0;
  }
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
      AddToBin<Group, kLimbs>(table, bin, weight);
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) last += __shfl_xor_sync(0xFFFFFFFF, last, step);
  if (lane == 0) AddToBin<Group, kLimbs>(table, kBins - 1, last);
  Group::Sync();  // Tables of all CTAs are full.

  constexpr int kEach = (kBins + kVocabularyThreads - 1) / kVocabularyThreads;
  Weight mine[kEach] = {};
  Weight sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int bin = thread * kEach + i;
    if (bin >= kBins) continue;
#pragma unroll
    for (int limb = 0; limb < kLimbs; ++limb) {
      // Loads of eight CTAs on their way at once.
      for (int first = 0; first < Group::Ctas(); first += 8) {
        uint32_t parts[8];
#pragma unroll
        for (int rank = 0; rank < 8; ++rank) {
          parts[rank] = 0;
          if (first + rank < Group::Ctas()) {
            parts[rank] = Group::Remote(&table, first + rank)->bins[limb][bin];
          }
        }
#pragma unroll
        for (int rank = 0; rank < 8; ++rank) {
          mine[i] += static_cast<Weight>(parts[rank]) << (Group::kLimbBits * limb);
        }
      }
    }
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

// The cut among the ids that here(z, id) names, when they are few: every CTA lists its own, and
// each thread sums what is in front of one of all. False, and nothing else, when they are many.
// Takes one turn.
template <typename Group, typename Here, typename WeightOf>
__device__ bool CutOfFew(const RowPart& part, SelectShared& shared, int turn, const Here& here,
                         const WeightOf& weight_of, Weight remaining) {
  const int thread = static_cast<int>(threadIdx.x);
  auto& list = shared.tables[turn % 2].list;
  if (thread == 0) list.count = 0;
  __syncthreads();  // The list is empty.
  for (int i = thread; i < part.count; i += kVocabularyThreads) {
    const float z = part.z[i];
    if (!here(z, part.first + i)) continue;
    const uint32_t at = atomicAdd(reinterpret_cast<uint32_t*>(&list.count), 1);
    if (at < kFewMax) {
      list.order[at] =
          static_cast<Weight>(KeyOf(z)) << 32 | static_cast<uint32_t>(~(part.first + i));
    }
  }
  Group::Sync();  // Lists of all CTAs are there, and nobody reads the turn's before any more.
  FewEntry* const few = shared.tables[(turn + 1) % 2].few;
  // Lane r of every warp knows the list of rank r.
  const int lane = thread % 32;
  int end = lane < Group::Ctas() ? static_cast<int>(Group::Remote(&list, lane)->count) : 0;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, end, step);
    if (lane >= step) end += other;
  }
  const int total = __shfl_sync(0xFFFFFFFF, end, 31);
  if (total > kFewMax) return false;
  FewEntry mine{};
  int rank = 0;
  int begin = 0;
  for (int r = 0; r < Group::Ctas(); ++r) {
    const int end_of_rank = __shfl_sync(0xFFFFFFFF, end, r);
    if (thread < end_of_rank) continue;
    rank = r + 1;
    begin = end_of_rank;
  }
  if (thread < total) {
    mine.order = Group::Remote(&list, rank)->order[thread - begin];
    mine.weight = weight_of(LogitOfKey(static_cast<uint32_t>(mine.order >> 32)));
    few[thread] = mine;
  }
  __syncthreads();  // All entries are there.
  Weight before = 0;
  for (int i = 0; i < total; ++i) {
    if (few[i].order > mine.order) before += few[i].weight;
  }
  if (thread < total && before < remaining && before + mine.weight >= remaining) {
    shared.cut = {static_cast<uint32_t>(mine.order >> 32),
                  static_cast<int32_t>(~static_cast<uint32_t>(mine.order))};
  }
  __syncthreads();  // The cut is there.
  return true;
}

// The digits of the cut's key and, where equal logits are kept in part, of its id; `here` and
// `remaining` as for CutOfFew.
template <typename Group, typename Here, typename WeightOf>
__device__ Cut CutByDigits(const RowPart& part, SelectShared& shared, int& turn, const Here& here,
                           const WeightOf& weight_of, Weight remaining) {
  Cut cut = kNoCut;
  Crossing crossing{};
  for (int shift = 24; shift >= 0; shift -= 8) {
    const uint32_t prefix = cut.key;
    crossing = FindCrossing<Group, kDigitBins, WeightOf::kLimbs>(
        part, shared, turn++,
        [&](float z, int id, int& bin) -> Weight {
          const uint32_t key = KeyOf(z);
          bin = 255 - static_cast<int>(key >> shift & 255);
          const bool match = shift == 24 || key >> (shift + 8) == prefix;
          return match && here(z, id) ? weight_of(z) : 0;
        },
        [&](Weight) { return remaining; });
    remaining -= crossing.before;
    cut.key = prefix << 8 | static_cast<uint32_t>(255 - crossing.bin);
  }
  // Equal logits weigh the same: so many of them are kept, those of the lowest ids.
  const Weight each = weight_of(LogitOfKey(cut.key));
  Weight kept = (remaining + each - 1) / each;
  if (kept * each == crossing.inside) return cut;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    crossing = FindCrossing<Group, kDigitBins, CountWeight::kLimbs>(
        part, shared, turn++,
        [&](float z, int id, int& bin) -> Weight {
          bin = id >> shift & 255;
          const bool match = KeyOf(z) == cut.key &&
                             (shift == 24 || static_cast<uint32_t>(id) >> (shift + 8) == prefix);
          return match && here(z, id) ? 1 : 0;
        },
        [&](Weight) { return kept; });
    kept -= crossing.before;
    prefix = prefix << 8 | static_cast<uint32_t>(crossing.bin);
  }
  cut.id = static_cast<int32_t>(prefix);
  return cut;
}

// The cut of the prefix whose weights reach target(total). has(z, id) says who takes part. `max` is
// the row's maximum; `turn` counts the passes over `shared`.
template <typename Group, typename Has, typename WeightOf, typename Target>
__device__ Cut SelectPrefix(const RowPart& part, SelectShared& shared, int& turn, float max,
                            const Has& has, const WeightOf& weight_of, const Target& target) {
  // Far more even than the digits of a key, which begin with an exponent. Subtraction and product
  // round monotonically, so that bins follow the order of logits.
  const auto linear_bin = [&](float z) {
    return min(kLinearBins - 1, __float2int_rz((max - z) * kBinsPerUnit));
  };
  Weight wanted = 0;
  const Crossing crossing = FindCrossing<Group, kLinearBins, WeightOf::kLimbs>(
      part, shared, turn++,
      [&](float z, int id, int& bin) -> Weight {
        bin = linear_bin(z);
        return has(z, id) ? weight_of(z) : 0;
      },
      [&](Weight total) { return wanted = target(total); });
  const auto here = [&](float z, int id) { return linear_bin(z) == crossing.bin && has(z, id); };
  const Weight remaining = wanted - crossing.before;
  if (CutOfFew<Group>(part, shared, turn++, here, weight_of, remaining)) return shared.cut;
  return CutByDigits<Group>(part, shared, turn, here, weight_of, remaining);
}

}  // namespace lockstep::kernels::cuda
