#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "services/worker/engine/overhead_metrics.h"
#include "services/worker/engine/step_executor.h"

namespace lockstep::worker {

// Measures what determinism costs while the engine serves. Of the steps of each bucket one in
// `every_steps` has a shadow: a step of the same shape, run in both modes by the executor on memory
// of its own. So all shadows together take a bounded share of the time, and every bucket gets its
// part of them. Used by the engine's thread. Example:
//   const auto bucket = meter.Begin(sequences);   // A step is launched,
//   meter.Serve(bucket, seconds);                 // and was collected.
//   if (meter.due()) meter.Measure();             // Nothing is in flight.
class OverheadMeter {
 public:
  enum class Phase { kDecode, kPrefill };
  // Steps whose ratios are one: phase, and batch rounded up to a power of two.
  using Bucket = std::pair<Phase, int64_t>;
  static Bucket BucketOf(std::span<const StepSequence> step);

  // `every_steps` 0, or an executor without another mode: never. Borrows all.
  OverheadMeter(int64_t every_steps, StepExecutor* executor, const base::Clock* clock,
                OverheadMetrics* metrics);

  // Counts a step, and remembers its shape when its bucket is to be measured.
  Bucket Begin(std::span<const StepSequence> step);
  void Serve(const Bucket& bucket, absl::Duration duration);
  bool due() const { return !shape_.empty(); }
  // Runs the shadow; no step may be in flight. An error means that the device is lost.
  absl::Status Measure();

 private:
  struct State {
    int64_t steps = 0;
    absl::Duration served;
    std::deque<double> ratios;  // Of the last shadows, oldest first.
  };

  void Export(const Bucket& bucket, const State& state);

  const int64_t every_steps_;
  StepExecutor* const executor_;
  const base::Clock* const clock_;
  OverheadMetrics* const metrics_;
  std::map<Bucket, State> buckets_;
  std::vector<SequenceShape> shape_;  // Of the shadow that is due.
  Bucket due_bucket_;
};

}  // namespace lockstep::worker
