// Log-probabilities. logits: [rows, vocabulary] fp32. logprob = RN(RN(z - M) - log(T(e))) with M
// the exact maximum, e the contract's exponentials and T over the vocabulary by id; one op for
// every use, so that generation and scoring agree. Placement-invariant.
#include <algorithm>

#include "kernels/cpu/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/logprobs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vocabulary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// log_softmax of one row, value by value.
class LogSoftmax {
 public:
  // Keeps the exponentials in `exponentials` unless null.
  LogSoftmax(const float* z, size_t n, float* exponentials)
      : z_(z),
        max_(RowMax(z, n)),
        sum_(SumOfExponentials(z, n, max_, exponentials)),
        log_sum_(LogOf(sum_)) {}

  // Never above 0: the sum is at least the 1 of the maximum.
  float operator()(size_t id) const { return std::max(-kHighest, (z_[id] - max_) - log_sum_); }

  // log S - T(e * (z - M)) / S. An id without probability adds nothing.
  float Entropy(const float* exponentials, size_t n) const {
    const float weighted = TreeOver(n, [&](size_t i) HWY_ATTR {
      const VF e = LoadFirst(exponentials + i, n - i);
      const VF distance = hn::Sub(LoadFirst(z_ + i, n - i), Splat(max_));
      return hn::IfThenElseZero(hn::Lt(hn::Zero(F()), e), hn::Mul(e, distance));
    });
    return log_sum_ - weighted / sum_;
  }

 private:
  const float* z_;
  float max_;
  float sum_;
  float log_sum_;
};

// Ids of the `count` largest values, descending, ties to the lower id, by insertion: only the few
// values above the worst of the list are looked at one by one.
void LargestIds(const float* z, size_t n, size_t count, int32_t* ids) {
  size_t found = 0;
  for (size_t first = 0; first < n; first += kLanes) {
    const size_t lanes = std::min(kLanes, n - first);
    if (found == count) {
      const VF worst = Splat(z[ids[count - 1]]);
      if (lanes == kLanes && hn::AllFalse(F(), hn::Lt(worst, hn::LoadU(F(), z + first)))) continue;
    }
    for (size_t id = first; id < first + lanes; ++id) {
      if (found == count && !(z[id] > z[ids[count - 1]])) continue;
      if (found < count) ++found;
      size_t at = found - 1;
      for (; at > 0 && z[id] > z[ids[at - 1]]; --at) ids[at] = ids[at - 1];
      ids[at] = static_cast<int32_t>(id);
    }
  }
}

// Where the results of one row go; null where the caller gave no array.
struct RowResults {
  float* raw;
  float* scaled;
  float* entropy;
  int32_t* top_ids;
  float* top_logprobs;
};

template <typename T>
T* At(T* array, int64_t index) {
  return array == nullptr ? nullptr : array + index;
}

void FailRow(const LogprobArgs& args, const LogprobRow& row, const RowResults& results) {
  for (float* value : {results.raw, results.scaled, results.entropy}) {
    if (value != nullptr) *value = -kHighest;
  }
  for (int i = 0; i < row.top_count; ++i) results.top_logprobs[i] = -kHighest;
  for (int32_t i = row.chosen_begin; i < row.chosen_end; ++i) args.chosen_logprobs[i] = -kHighest;
}

void RawOfRow(const LogprobArgs& args, const LogprobRow& row, const float* z, float* exponentials,
              const RowResults& results) {
  const size_t n = static_cast<size_t>(args.vocabulary);
  const LogSoftmax raw(z, n, row.want_entropy != 0 ? exponentials : nullptr);
  if (results.raw != nullptr && row.target_id >= 0) {
    *results.raw = raw(static_cast<size_t>(row.target_id));
  }
  if (row.want_entropy != 0) *results.entropy = raw.Entropy(exponentials, n);
  if (row.top_count > 0) {
    const size_t count = std::min(n, static_cast<size_t>(row.top_count));
    LargestIds(z, n, count, results.top_ids);
    for (size_t i = 0; i < count; ++i) {
      results.top_logprobs[i] = raw(static_cast<size_t>(results.top_ids[i]));
    }
  }
  for (int32_t i = row.chosen_begin; i < row.chosen_end; ++i) {
    args.chosen_logprobs[i] = raw(static_cast<size_t>(args.chosen_ids[i]));
  }
}

bool WantsNothing(const LogprobRow& row) {
  return row.target_id < 0 && row.top_count == 0 && row.want_entropy == 0 &&
         row.chosen_begin == row.chosen_end;
}

void LogprobsOfRow(const LogprobArgs& args, int64_t index, float* scratch) {
  LogprobRow row = args.row_params[index];
  if (row.target_id == kTargetDrawn) row.target_id = args.drawn_ids[index];
  const size_t n = static_cast<size_t>(args.vocabulary);
  const float* z = args.logits + static_cast<size_t>(index) * n;
  const RowResults results{.raw = At(args.raw, index),
                           .scaled = At(args.scaled, index),
                           .entropy = At(args.entropy, index),
                           .top_ids = At(args.top_ids, index * kTopLogprobsMax),
                           .top_logprobs = At(args.top_logprobs, index * kTopLogprobsMax)};
  for (float* value : {results.raw, results.scaled, results.entropy}) {
    if (value != nullptr) *value = 0;
  }
  if (results.top_ids != nullptr) {
    std::fill_n(results.top_ids, kTopLogprobsMax, -1);
    std::fill_n(results.top_logprobs, kTopLogprobsMax, 0.0f);
  }
  // A row without one finite logit has no distribution either.
  if (!AllBelowInfinity(z, n) || RowMax(z, n) == -kInfinity) {
    args.errors[index] = SampleError::kNonFiniteLogits;
    return FailRow(args, row, results);
  }
  args.errors[index] = SampleError::kNone;
  if (WantsNothing(row)) return;
  RawOfRow(args, row, z, scratch, results);
  if (row.want_scaled == 0 || results.scaled == nullptr || row.target_id < 0) return;
  ScaleRow(z, n, row.temperature == 0 ? 1.0f : row.temperature, scratch);
  *results.scaled = LogSoftmax(scratch, n, nullptr)(static_cast<size_t>(row.target_id));
}

void LogprobsOfRows(const LogprobArgs& args, int64_t begin, int64_t end, float* scratch) {
  for (int64_t row = begin; row < end; ++row) LogprobsOfRow(args, row, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(LogprobsOfRows);

void Logprobs(OpContext& context, const LogprobArgs& args) {
  constexpr int64_t kIdsPerThread = 1 << 12;
  context.pool.ParallelFor(
      args.rows, 1 + kIdsPerThread / args.vocabulary, [&](int64_t begin, int64_t end, int thread) {
        float* scratch =
            context.scratch.OfThread<float>(thread, static_cast<size_t>(args.vocabulary));
        HWY_DYNAMIC_DISPATCH(LogprobsOfRows)(args, begin, end, scratch);
      });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
