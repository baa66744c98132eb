// Sampler. logits: [rows, vocabulary] fp32. Order of application in kernels/README.md. Sums are
// integers or T, the maximum is exact, noise is keyed by (sub-seed, position, id): no row sees
// another, and nothing depends on how the row was searched. Placement-invariant.
#include <algorithm>
#include <span>

#include "kernels/cpu/candidates.h"
#include "kernels/cpu/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vocabulary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// The best of the noisy logits so far; ties to the lower id.
struct Best {
  float value = -kInfinity;
  int32_t id = -1;

  HWY_INLINE void Offer(float candidate, int32_t candidate_id) {
    if (candidate > value || (candidate == value && candidate_id < id)) {
      value = candidate;
      id = candidate_id;
    }
  }
};

// A group of 4 * kLanes logits with their random words.
constexpr size_t kQuads = 4 * kLanes;

// noisy = z + Gumbel noise of the words, for a full group. Returns their maximum.
HWY_INLINE float AddNoise(const float* z, const uint32_t* words, float* noisy) {
  VF max = Splat(-kInfinity);
  for (size_t i = 0; i < kQuads; i += kLanes) {
    const VF sum = hn::Add(hn::LoadU(F(), z + i), GumbelNoise(hn::LoadU(U(), words + i)));
    hn::StoreU(sum, F(), noisy + i);
    max = MaxOf(max, sum);
  }
  return MaxOfLanes(max);
}

// Draws among all ids in [0, n).
int32_t DrawFromRow(const float* z, size_t n, uint64_t seed, uint32_t position) {
  HWY_ALIGN float logits[kQuads];
  HWY_ALIGN float noisy[kQuads];
  HWY_ALIGN uint32_t words[kQuads];
  Best best;
  for (size_t first = 0; first < n; first += kQuads) {
    const size_t count = std::min(kQuads, n - first);
    const float* group = z + first;
    if (count < kQuads) {
      std::fill(std::copy_n(group, count, logits), logits + kQuads, -kInfinity);
      group = logits;
    }
    RandomWords(seed, position, static_cast<uint32_t>(first / 4), words);
    if (AddNoise(group, words, noisy) <= best.value) continue;
    for (size_t i = 0; i < count; ++i) best.Offer(noisy[i], static_cast<int32_t>(first + i));
  }
  return best.id;
}

// Draws among listed ids.
int32_t DrawFromList(std::span<const Candidate> list, uint64_t seed, uint32_t position) {
  const size_t n = list.size();
  HWY_ALIGN float logits[kQuads];
  HWY_ALIGN float noisy[kQuads];
  HWY_ALIGN uint32_t words[kQuads];
  Best best;
  for (size_t first = 0; first < n; first += kQuads) {
    const size_t count = std::min(kQuads, n - first);
    for (size_t i = 0; i < kQuads; ++i) {
      const Candidate candidate = list[first + std::min(i, count - 1)];
      const uint32_t id = static_cast<uint32_t>(IdOf(candidate));
      logits[i] = LogitOf(candidate);
      words[i] = base::Philox4x32(
          {position, id / 4, 0, 0},
          {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[id % 4];
    }
    AddNoise(logits, words, noisy);
    for (size_t i = 0; i < count; ++i) best.Offer(noisy[i], IdOf(list[first + i]));
  }
  return best.id;
}

// Bias, bans and penalties, at the ids that are listed. False when one becomes NaN or +infinity.
bool Adjust(const SampleArgs& args, const SamplingRow& row, float* z) {
  bool finite = true;
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    const IdBias& bias = args.biases[i];
    if (bias.id >= args.vocabulary_sampled) continue;
    z[bias.id] = z[bias.id] + bias.value;
    finite = finite && z[bias.id] < kInfinity;
  }
  for (int32_t i = row.count_begin; i < row.count_end; ++i) {
    const IdCount& count = args.counts[i];
    if (count.id < 0 || count.id >= args.vocabulary_sampled) continue;
    float& value = z[count.id];
    value = value > 0 ? value / row.repetition_penalty : value * row.repetition_penalty;
    if (count.output_count > 0) {
      value = value - row.frequency_penalty * static_cast<float>(count.output_count);
      value = value - row.presence_penalty;
    }
    finite = finite && value < kInfinity;
  }
  return finite;
}

// Per-thread working memory of one row.
struct RowScratch {
  float* z;             // [vocabulary]
  float* exponentials;  // [vocabulary]
  Candidate* candidates;
};

int32_t DrawFiltered(const SamplingRow& row, size_t n, float max, const RowScratch& scratch) {
  if (row.top_p < 1) SumOfExponentials(scratch.z, n, max, scratch.exponentials);
  size_t count = 0;
  for (size_t id = 0; id < n; ++id) {
    if (scratch.z[id] == -kInfinity) continue;
    scratch.candidates[count++] = MakeCandidate(scratch.z[id], static_cast<int32_t>(id));
  }
  // Below the smallest normal number nothing is cut that could ever be drawn.
  const bool min_p_on = row.min_p >= std::numeric_limits<float>::min();
  const float min_p_log = min_p_on ? LogOf(row.min_p) : -kInfinity;
  count = FilterCandidates({scratch.candidates, count}, row, max, scratch.exponentials, min_p_log);
  const std::span<const Candidate> survivors(scratch.candidates, count);
  const uint32_t position = static_cast<uint32_t>(row.position);
  // Many survivors are drawn faster in place, the others banned: the same noise, so the same id.
  constexpr size_t kDenseShare = 16;
  if (count < n / kDenseShare) return DrawFromList(survivors, row.sub_seed, position);
  std::fill_n(scratch.z, n, -kInfinity);
  for (const Candidate candidate : survivors) scratch.z[IdOf(candidate)] = LogitOf(candidate);
  return DrawFromRow(scratch.z, n, row.sub_seed, position);
}

SampleError SampleRow(const SampleArgs& args, int64_t index, const RowScratch& scratch,
                      int32_t& id) {
  const SamplingRow& row = args.row_params[index];
  const size_t vocabulary = static_cast<size_t>(args.vocabulary);
  const size_t n = static_cast<size_t>(args.vocabulary_sampled);
  const float* logits = args.logits + static_cast<size_t>(index) * vocabulary;
  id = -1;
  if (!AllBelowInfinity(logits, vocabulary)) return SampleError::kNonFiniteLogits;
  std::copy_n(logits, n, scratch.z);
  if (!Adjust(args, row, scratch.z)) return SampleError::kNonFiniteLogits;
  const bool greedy = row.temperature == 0;
  if (!greedy) ScaleRow(scratch.z, n, row.temperature, scratch.z);
  const float max = RowMax(scratch.z, n);
  if (max == -kInfinity) return SampleError::kAllBanned;
  if (greedy) {
    id = static_cast<int32_t>(std::find(scratch.z, scratch.z + n, max) - scratch.z);
  } else if ((row.top_k > 0 && row.top_k < args.vocabulary_sampled) || row.top_p < 1 ||
             row.min_p > 0) {
    id = DrawFiltered(row, n, max, scratch);
  } else {
    id = DrawFromRow(scratch.z, n, row.sub_seed, static_cast<uint32_t>(row.position));
  }
  return SampleError::kNone;
}

void SampleRows(const SampleArgs& args, int64_t begin, int64_t end, Candidate* memory) {
  const size_t vocabulary = static_cast<size_t>(args.vocabulary);
  float* const floats = reinterpret_cast<float*>(memory + vocabulary);
  const RowScratch scratch{.z = floats, .exponentials = floats + vocabulary, .candidates = memory};
  for (int64_t row = begin; row < end; ++row) {
    args.errors[row] = SampleRow(args, row, scratch, args.ids[row]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(SampleRows);

void CountDrawn(const CountDrawnArgs& args) {
  for (int index = 0; index < args.rows; ++index) {
    const SamplingRow& row = args.row_params[index];
    if (row.drawn_slot < 0 || args.drawn_ids[row.drawn_slot] < 0) continue;
    const int32_t id = args.drawn_ids[row.drawn_slot];
    IdCount* const last = args.counts + row.count_end - 1;
    IdCount* const found = std::find_if(args.counts + row.count_begin, last,
                                        [id](const IdCount& count) { return count.id == id; });
    if (found == last) *last = {.id = id};
    ++found->output_count;
  }
}

void Sample(OpContext& context, const SampleArgs& args) {
  LOCKSTEP_CHECK(args.vocabulary_sampled > 0 && args.vocabulary_sampled <= args.vocabulary)
      << args.vocabulary_sampled << " of " << args.vocabulary << " ids";
  constexpr int64_t kIdsPerThread = 1 << 11;
  context.pool.ParallelFor(
      args.rows, 1 + kIdsPerThread / args.vocabulary, [&](int64_t begin, int64_t end, int thread) {
        Candidate* memory =
            context.scratch.OfThread<Candidate>(thread, 2 * static_cast<size_t>(args.vocabulary));
        HWY_DYNAMIC_DISPATCH(SampleRows)(args, begin, end, memory);
      });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
