#pragma once

#include <cuda_runtime.h>

#include "kernels/api/sampling.h"
#include "kernels/cuda/device/select.cuh"

// The sampler, one group of CTAs a row, in the order of kernels/README.md: bias and bans,
// penalties, temperature, top-k, top-p, min-p, noise. The maximum is exact, sums are integers,
// noise is keyed by (sub-seed, position, id): nothing depends on how the row was searched. The row
// is read from global memory once. Placement-invariant; the bits of the CPU backend.
namespace lockstep::kernels::cuda {

// A drawn id as one integer: greater is a higher noisy logit, or the same and a lower id; 0 is
// none.
using Drawn = unsigned long long;

__device__ __forceinline__ Drawn DrawnOf(float value, int id) {
  return static_cast<Drawn>(KeyOf(value)) << 32 | static_cast<uint32_t>(~id);
}

__device__ __forceinline__ float ValueOf(Drawn drawn) {
  return drawn == 0 ? -kInfinity : LogitOfKey(static_cast<uint32_t>(drawn >> 32));
}

struct PartDrawn {
  Drawn best;
  int32_t bad;
};

template <typename Group>
struct SampleShared {
  SelectShared select;
  PartSummary summary_warps[kVocabularyWarps];
  PartSummary summary;
  PartDrawn drawn_warps[kVocabularyWarps];
  PartDrawn drawn;
  typename Group::Loading loading;
  // A SamplingRow, here to spare registers.
  alignas(8) uint32_t params[sizeof(SamplingRow) / sizeof(uint32_t)];
};

constexpr int kSlots = 1024;

// Adds the row's biases in list order. Where threads hold biases of one id, or of ids that share a
// slot, the first in the list goes first. `slots` [kSlots] is any shared memory. Returns whether a
// logit of this thread became NaN or +infinity.
// A call, so that rows without lists do not pay with registers.
inline __device__ __noinline__ bool AddBiases(const RowPart& part, const SampleArgs& args,
                                              const SamplingRow& params, int* slots) {
  const int thread = static_cast<int>(threadIdx.x);
  bool bad = false;
  for (int begin = params.bias_begin; begin < params.bias_end; begin += kVocabularyThreads) {
    const bool exists = begin + thread < params.bias_end;
    const IdBias bias = exists ? args.biases[begin + thread] : IdBias{};
    const int local = bias.id - part.first;
    bool pending = exists && local >= 0 && local < part.count && bias.id < args.vocabulary_sampled;
    while (__syncthreads_or(pending)) {  // Earlier additions are seen.
      int* const slot = slots + local % kSlots;
      if (pending) *slot = kVocabularyThreads;
      __syncthreads();  // Slots in use are empty.
      if (pending) atomicMin(slot, thread);
      __syncthreads();  // Every slot has its first thread.
      if (pending && *slot == thread) {
        part.z[local] = part.z[local] + bias.value;
        bad |= !(part.z[local] < kInfinity);
        pending = false;
      }
    }
  }
  return bad;
}

// Applies the penalties; each id is listed once. Returns as AddBiases does.
__device__ __forceinline__ bool Penalise(const RowPart& part, const SampleArgs& args,
                                         const SamplingRow& params) {
  bool bad = false;
  for (int i = params.count_begin + static_cast<int>(threadIdx.x); i < params.count_end;
       i += kVocabularyThreads) {
    const IdCount count = args.counts[i];
    const int local = count.id - part.first;
    if (local < 0 || local >= part.count || count.id >= args.vocabulary_sampled) continue;
    float value = part.z[local];
    value =
        value > 0 ? __fdiv_rn(value, params.repetition_penalty) : value * params.repetition_penalty;
    if (count.output_count > 0) {
      value = value - params.frequency_penalty * __int2float_rn(count.output_count);
      value = value - params.presence_penalty;
    }
    part.z[local] = value;
    bad |= !(value < kInfinity);
  }
  return bad;
}

// ceil(top_p * total), exactly, for top_p in (0, 1) and 0 < total < 2^58.
__device__ __forceinline__ Weight TopPThreshold(float top_p, Weight total) {
  const uint32_t bits = __float_as_uint(top_p);
  const int shift = 150 - static_cast<int>(bits >> 23);
  // The product is below 2^82.
  if (shift >= 82) return 1;
  using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>((bits & 0x7FFFFF) | 0x800000) * total;
  return static_cast<Weight>((product + ((static_cast<Wide>(1) << shift) - 1)) >> shift);
}

// What remains of a row after its filters.
struct Survivors {
  Cut cut;
  float max;
  float min_p_log;

  __device__ __forceinline__ bool Has(float z, int id) const {
    return z > -kInfinity && IsKept(cut, z, id) && z - max >= min_p_log;
  }
};

// Filters over a row that is scaled in place.
template <typename Group>
__device__ __forceinline__ Survivors Filter(const RowPart& part, SelectShared& shared,
                                            const SamplingRow& params, float max) {
  // Below the smallest normal number nothing is cut that could ever be drawn.
  const bool min_p_on = params.min_p >= 0x1p-126f;
  Survivors survivors{kNoCut, max, min_p_on ? Log(params.min_p) : -kInfinity};
  int turn = 0;
  if (params.top_k > 0) {
    survivors.cut = SelectPrefix<Group>(
        part, shared, turn, max, [](float z, int) { return z > -kInfinity; }, CountWeight{},
        [&](Weight total) { return min(static_cast<Weight>(params.top_k), total); });
  }
  if (params.top_p < 1) {
    const Cut top_k = survivors.cut;
    survivors.cut = SelectPrefix<Group>(
        part, shared, turn, max,
        [&](float z, int id) { return z > -kInfinity && IsKept(top_k, z, id); }, MassWeight{max},
        [&](Weight total) { return TopPThreshold(params.top_p, total); });
    // Of equal logits, those that top-k cut off stay cut.
    if (survivors.cut.key == top_k.key) survivors.cut.id = min(survivors.cut.id, top_k.id);
  }
  return survivors;
}

// The best of this thread's ids by value(z, id) plus noise, where minus infinity takes no part.
// What cannot beat a value already seen gets no noise: the bound is above it, so that no draw
// changes.
template <typename Value>
class Draw {
 public:
  __device__ Draw(const RowPart& part, const SamplingRow& params, const Value& value)
      : part_(part), params_(params), value_(value) {}

  __device__ Drawn Run(PartDrawn* warps) {
    const int tiles = part_.ids / kTileIds;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int first = 0; first < tiles; first += kVocabularyWarps) {
      if (first + warp < tiles) Tile(first + warp);
      if (first > 0) continue;
      // One exchange early, when values seen by other warps help most.
      if (lane == 0) warps[warp].best = DrawnOf(bound_, 0);
      __syncthreads();  // Bounds of all warps are there.
      const float bound = lane < kVocabularyWarps ? ValueOf(warps[lane].best) : -kInfinity;
      bound_ = fmaxf(bound_, MaxOfWarp(bound));
    }
    return best_;
  }

 private:
  __device__ __forceinline__ void Tile(int tile) {
    const int at = tile * kTileIds + static_cast<int>(threadIdx.x % 32) * 4;
    const int id = part_.first + at;
    const float4 z = *reinterpret_cast<const float4*>(part_.z + at);
    const float values[4] = {value_(z.x, id), value_(z.y, id + 1), value_(z.z, id + 2),
                             value_(z.w, id + 3)};
    const std::array<uint32_t, 4> words = RandomWords(
        params_.sub_seed, static_cast<uint32_t>(params_.position), static_cast<uint32_t>(id) / 4);
    const float largest = fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3]));
    const uint32_t least = ~max(max(words[0], words[1]), max(words[2], words[3]));
    // Nearly always all four are out of reach. In greater numbers the margin is lost in roundings.
    const bool hopeless = fabsf(bound_) < 0x1p15f && least > ComplementLimit(largest - bound_);
    if (!hopeless) Look(id, values, words);
    if (__all_sync(0xFFFFFFFF, hopeless)) return;
    bound_ = LogitOfKey(__reduce_max_sync(0xFFFFFFFF, KeyOf(bound_)));
  }

  // Adds noise to those of four ids that can beat what is known.
  __device__ __forceinline__ void Look(int id, const float (&values)[4],
                                       const std::array<uint32_t, 4>& words) {
    float bounds[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bounds[i] = values[i] + GumbelBound(words[i]);
    while (true) {
      // The most promising first: it usually rules the others out.
      float bound = bounds[0];
      float value = values[0];
      uint32_t word = words[0];
      int best = 0;
#pragma unroll
      for (int i = 1; i < 4; ++i) {
        if (!(bounds[i] > bound)) continue;
        bound = bounds[i];
        value = values[i];
        word = words[i];
        best = i;
      }
      if (!(bound >= bound_) || bound == -kInfinity) return;
      const float noisy = value + GumbelNoise(word);
      best_ = max(best_, DrawnOf(noisy, id + best));
      bound_ = fmaxf(bound_, noisy);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i == best) bounds[i] = -kInfinity;
      }
    }
  }

  const RowPart& part_;
  const SamplingRow& params_;
  const Value& value_;
  Drawn best_ = 0;
  float bound_ = -kInfinity;  // A value that an id of this row has reached.
};

// The row's largest logit; ties to the lower id.
__device__ __forceinline__ Drawn Largest(const RowPart& part) {
  Drawn best = 0;
  for (int i = static_cast<int>(threadIdx.x); i < part.count; i += kVocabularyThreads) {
    if (part.z[i] > -kInfinity) best = max(best, DrawnOf(part.z[i], part.first + i));
  }
  return best;
}

template <typename Value>
__device__ __forceinline__ Drawn DrawFrom(const RowPart& part, const SamplingRow& params,
                                          PartDrawn* warps, const Value& value) {
  return Draw<Value>(part, params, value).Run(warps);
}

// Scales in place, filters, draws. Bad rows draw nothing.
template <typename Group>
__device__ __forceinline__ Drawn DrawFiltered(const RowPart& part, const SamplingRow& params,
                                              SampleShared<Group>& shared, bool bad) {
  PartSummary mine{-kInfinity, bad};
  for (int i = static_cast<int>(threadIdx.x); i < part.count; i += kVocabularyThreads) {
    part.z[i] = Scaled(part.z[i], params.temperature);
    mine.max = fmaxf(mine.max, part.z[i]);
  }
  const PartSummary whole = SummaryOfRow<Group>(mine, shared.summary_warps, &shared.summary);
  if (whole.bad != 0 || whole.max == -kInfinity) return 0;
  const Survivors survivors = Filter<Group>(part, shared.select, params, whole.max);
  return DrawFrom(part, params, shared.drawn_warps,
                  [&](float z, int id) { return survivors.Has(z, id) ? z : -kInfinity; });
}

// The best of a warp's and whether any lane is bad; all lanes see the same.
__device__ __forceinline__ PartDrawn DrawnOfWarp(PartDrawn drawn) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    drawn.best = max(drawn.best, __shfl_xor_sync(0xFFFFFFFF, drawn.best, step));
  }
  return {drawn.best, __any_sync(0xFFFFFFFF, drawn.bad)};
}

// The same over the CTA, to `shared.drawn`.
template <typename Group>
__device__ __forceinline__ void StoreDrawn(PartDrawn drawn, SampleShared<Group>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  drawn = DrawnOfWarp(drawn);
  __syncthreads();  // Nobody reads the bounds of Draw any more.
  if (lane == 0) shared.drawn_warps[threadIdx.x / 32] = drawn;
  __syncthreads();  // Warps' results are there.
  if (threadIdx.x >= 32) return;
  drawn = DrawnOfWarp(lane < kVocabularyWarps ? shared.drawn_warps[lane] : PartDrawn{});
  if (lane == 0) shared.drawn = drawn;
}

// One row. `memory` has room for this CTA's part of it.
template <typename Group>
__device__ __forceinline__ void SampleRow(const SampleArgs& args, int row, float* memory,
                                          SampleShared<Group>& shared) {
  constexpr int kWords = sizeof(shared.params) / sizeof(uint32_t);
  if (threadIdx.x < kWords) {
    shared.params[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(args.row_params + row)[threadIdx.x];
  }
  const SamplingRow& params = *reinterpret_cast<const SamplingRow*>(shared.params);
  const RowPart part = PartOfRow<Group>(memory, args.vocabulary);
  bool bad = false;
  Group::Load(args.logits + static_cast<size_t>(row) * args.vocabulary, part, shared.loading,
              [&](float z) { bad |= !(z < kInfinity); });
  __syncthreads();  // The part and the parameters are there.
  for (int i = max(0, args.vocabulary_sampled - part.first) + static_cast<int>(threadIdx.x);
       i < part.count; i += kVocabularyThreads) {
    part.z[i] = -kInfinity;
  }
  if (params.bias_begin < params.bias_end || params.count_begin < params.count_end) {
    bad |= AddBiases(part, args, params, reinterpret_cast<int*>(shared.select.tables));
    __syncthreads();  // All biases are added.
    bad |= Penalise(part, args, params);
  }
  __syncthreads();  // The row is what is drawn from.
  Drawn best;
  if (params.temperature == 0) {
    best = Largest(part);
  } else if (params.top_k > 0 || params.top_p < 1 || params.min_p > 0) {
    best = DrawFiltered(part, params, shared, bad);
  } else {
    best = DrawFrom(part, params, shared.drawn_warps,
                    [&](float z, int) { return Scaled(z, params.temperature); });
  }
  StoreDrawn({best, bad}, shared);
  Group::Sync();  // Results of all CTAs are there.
  const int lane = static_cast<int>(threadIdx.x);
  PartDrawn drawn{};
  if (Group::Rank() == 0 && lane < Group::Ctas()) drawn = *Group::Remote(&shared.drawn, lane);
  Group::Sync();  // Nobody reads this CTA's shared memory any more.
  if (Group::Rank() != 0 || lane >= 32) return;
  drawn = DrawnOfWarp(drawn);
  if (lane != 0) return;
  const bool failed = drawn.bad != 0;
  const bool none = failed || drawn.best == 0;
  args.ids[row] = none ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(drawn.best));
  args.errors[row] = failed ? SampleError::kNonFiniteLogits
                            : (none ? SampleError::kAllBanned : SampleError::kNone);
}

}  // namespace lockstep::kernels::cuda
