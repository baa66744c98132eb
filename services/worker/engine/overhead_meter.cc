#include "services/worker/engine/overhead_meter.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

// Shadows that a ratio is the median of: enough that one disturbed step does not show.
constexpr size_t kRatiosMax = 9;

std::vector<std::string> LabelsOf(const OverheadMeter::Bucket& bucket) {
  return {bucket.first == OverheadMeter::Phase::kDecode ? "decode" : "prefill",
          absl::StrCat(bucket.second)};
}

double Median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

}  // namespace

OverheadMeter::OverheadMeter(int64_t every_steps, StepExecutor* executor, const base::Clock* clock,
                             OverheadMetrics* metrics)
    : every_steps_(executor->times_modes() ? every_steps : 0),
      executor_(executor),
      clock_(clock),
      metrics_(metrics) {}

OverheadMeter::Bucket OverheadMeter::BucketOf(std::span<const StepSequence> step) {
  uint64_t tokens = 0;
  bool decodes = true;
  for (const StepSequence& sequence : step) {
    tokens += sequence.tokens.size();
    decodes &= sequence.tokens.size() == 1 && sequence.sample;
  }
  return {decodes ? Phase::kDecode : Phase::kPrefill, static_cast<int64_t>(std::bit_ceil(tokens))};
}

OverheadMeter::Bucket OverheadMeter::Begin(std::span<const StepSequence> step) {
  if (every_steps_ == 0) return {};
  const Bucket bucket = BucketOf(step);
  State& state = buckets_[bucket];
  if (++state.steps % every_steps_ != 0 || due()) return bucket;
  for (const StepSequence& sequence : step) {
    shape_.push_back({.position = sequence.position,
                      .tokens = static_cast<int64_t>(sequence.tokens.size()),
                      .draws = sequence.sample});
  }
  due_bucket_ = bucket;
  return bucket;
}

void OverheadMeter::Serve(const Bucket& bucket, absl::Duration duration) {
  if (every_steps_ == 0) return;
  buckets_[bucket].served += duration;
  metrics_->served.At(LabelsOf(bucket)).Increment(absl::ToDoubleSeconds(duration));
}

absl::Status OverheadMeter::Measure() {
  LOCKSTEP_CHECK(due());
  const absl::Time begun = clock_->Now();
  const absl::StatusOr<ModeTimes> times = executor_->TimeModes(shape_, *clock_);
  shape_.clear();
  LOCKSTEP_RETURN_IF_ERROR(times.status());
  metrics_->shadows.Increment();
  metrics_->shadow_seconds.Increment(absl::ToDoubleSeconds(clock_->Now() - begun));
  if (times->deterministic <= absl::ZeroDuration() || times->normal <= absl::ZeroDuration()) {
    return absl::OkStatus();  // The clock is too coarse for so small a model.
  }
  State& state = buckets_[due_bucket_];
  state.ratios.push_back(absl::FDivDuration(times->deterministic, times->normal));
  if (state.ratios.size() > kRatiosMax) state.ratios.pop_front();
  Export(due_bucket_, state);
  return absl::OkStatus();
}

void OverheadMeter::Export(const Bucket& bucket, const State& state) {
  metrics_->ratio.At(LabelsOf(bucket)).Set(Median(state.ratios));
  metrics_->measured.At(LabelsOf(bucket))
      .Set(absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch()));
  absl::Duration served;
  absl::Duration in_normal_mode;
  for (const auto& [other, its] : buckets_) {
    if (its.ratios.empty()) continue;
    served += its.served;
    in_normal_mode += its.served / Median(its.ratios);
  }
  if (in_normal_mode <= absl::ZeroDuration()) return;
  metrics_->weighted_ratio.At({}).Set(absl::FDivDuration(served, in_normal_mode));
}

}  // namespace lockstep::worker
