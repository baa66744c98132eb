#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/registry.h"
#include "services/worker/engine/engine_loop.h"
#include "services/worker/engine/engine_metrics.h"
#include "services/worker/model/model_factory.h"

namespace lockstep::bench {

// So many sequences of random prompts, all started at once; each draws `new_tokens` tokens at
// temperature 1 with their logprobs.
struct Workload {
  int sequences = 0;
  int prompt_tokens = 0;
  int new_tokens = 0;

  std::string Name() const;
};

// What one run of a workload took.
struct WorkloadRun {
  double seconds = 0;          // From the start to the last token.
  double prefill_seconds = 0;  // To the end of the last step that prefilled.
  double plan_seconds = 0;     // Of the loop's thread, choosing steps.
  int64_t steps = 0;
  // Time from the step before to each step in which every sequence drew a token and none
  // prefilled, the first of them left out.
  std::vector<double> decode_milliseconds;
  uint64_t ids_hash = 0;  // Of all tokens drawn, by sequence: equal for equal runs.
};

struct RigOptions {
  std::string backend = "cuda";
  std::string certificates_path;
  bool normal = false;  // Normal mode.
  bool audit = true;
  bool penalised = false;  // The first sequence of a workload has a frequency penalty.
  int ranks = 1;           // Devices that share the model, and its KV.
  int shadow_every_steps = 0;
  worker::ModelOptions model;
};

// A model under an engine loop, and nothing else. One thread.
class EngineRig {
 public:
  static absl::StatusOr<std::unique_ptr<EngineRig>> Create(const RigOptions& options);
  ~EngineRig();

  absl::StatusOr<WorkloadRun> Run(const Workload& workload, uint64_t seed);
  double load_seconds() const { return load_seconds_; }
  // What shadows measured so far, by series of the engine's metrics.
  std::map<std::string, double> ShadowSeries() const;

 private:
  struct Step {
    absl::Time time;
    int drawn = 0;
    bool prefilled = false;
  };

  EngineRig();
  void Collect(const worker::StepOutput& output);
  WorkloadRun Summarise(const Workload& workload, absl::Time begin) const;

  base::RealClock clock_;
  bool penalised_ = false;
  metrics::Registry registry_;
  worker::EngineMetrics metrics_;
  worker::LoadedModel model_;
  double load_seconds_ = 0;
  uint64_t next_ticket_ = 1;

  mutable base::Mutex mutex_;
  base::CondVar ended_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Step> steps_ ABSL_GUARDED_BY(mutex_);
  uint64_t ids_hash_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<worker::EngineLoop> loop_;  // Last, so that it ends first.
};

}  // namespace lockstep::bench
