#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/audit.h"
#include "services/worker/engine/engine_loop.h"
#include "services/worker/engine/overhead_meter.h"
#include "services/worker/engine/sequence.h"
#include "services/worker/engine/start_validation.h"
#include "services/worker/engine/step_selector.h"
#include "services/worker/kv/prefix_index.h"

namespace lockstep::worker {

// The engine without its thread: EngineLoop drives it, and so do simulations and tests. Methods
// mean what EngineLoop says of them. One thread at a time, except for MakeSequence. Example:
//   core->Start(start);
//   while (core->RunStep()) {}
//
// Over an asynchronous executor it launches a step before it collects the one before, so that it
// plans while the device computes. What it learns late, an end, makes it drop what the sequence
// still has in flight: no result of that is delivered or counted.
class EngineCore {
 public:
  // InvalidArgument when options contradict each other or the executor.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(EngineOptions options, EngineDeps deps);
  ~EngineCore();

  absl::Status Start(SequenceStart start);
  // The two halves of Start: checks and prepares, on any thread; then takes it in, whatever waits.
  absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(SequenceStart start) const;
  void Add(std::unique_ptr<Sequence> sequence);

  void Cancel(base::TicketId ticket);
  void AddCredit(base::TicketId ticket, int64_t tokens);
  int64_t AbortRequests(std::span<const base::RequestId> requests,
                        std::vector<base::RequestId>* known);
  int64_t AbortOlderThan(base::Epoch epoch);
  void SetHold(bool hold);
  int64_t FlushCache(const std::optional<std::string>& cache_namespace);
  void HandOffAll();

  // Ends what is past its deadline and delivers the results of commands.
  void DeliverPending();
  // DeliverPending, then launches a step, or collects one, or both. False when there was nothing to
  // do.
  bool RunStep();

  // Without `with_held`, which costs a walk over all sequences, the list is empty.
  EngineSnapshot Snapshot(bool with_held = true) const;
  const absl::Status& health() const { return health_; }
  int64_t waiting_count() const { return selector_.waiting_count(); }
  // When RunStep has something to do without a command; InfiniteFuture for never.
  absl::Time next_deadline() const;

 private:
  EngineCore(EngineOptions options, EngineDeps deps);

  using Planned = StepSelector::Planned;

  // A sequence's part of a step in flight.
  struct Part {
    HeldSequence* held = nullptr;  // Null once the sequence has ended.
    int64_t begin = 0;             // Position of its first token.
    int64_t tokens = 0;
    int64_t prefill_length = 0;
  };
  struct StepInFlight {
    std::vector<Part> parts;
    int64_t rows = 0;
    OverheadMeter::Bucket bucket;
    absl::Time launched;
  };

  // False when there is nothing to run, or the executor fails.
  bool LaunchStep();
  void CollectStep();
  void Fail(const absl::Status& status);
  void MeasureStep(const StepInFlight& step);
  void MeasureAudit();
  SequenceOutput TakeResult(const Part& part, const StepSequenceResult& result,
                            std::vector<Cut>* cuts);
  void MeasurePrefill(const Part& part, std::vector<Cut>* cuts);
  void MeasureToken(HeldSequence* held, absl::Time now);
  // Queues the end of a sequence that no result ends, and forgets the sequence.
  void EndNow(HeldSequence* held, SequenceEnd end);
  void Forget(HeldSequence* held);
  std::vector<HeldSequence*> ByAge() const;
  // Ends sequences for which `matches(start)` holds; returns their number.
  template <typename Predicate>
  int64_t AbortIf(const Predicate& matches);
  void SetGauges();

  const EngineOptions options_;
  const EngineDeps deps_;
  const StartLimits limits_;
  PrefixIndex index_;
  StepSelector selector_;
  absl::flat_hash_map<base::TicketId, std::unique_ptr<HeldSequence>> held_;
  std::set<std::pair<absl::Time, base::TicketId>> deadlines_;
  StepOutput pending_;
  std::deque<StepInFlight> in_flight_;  // Oldest first.
  absl::Time collected_ = absl::InfinitePast();
  std::vector<StepSequence> sequences_;  // Of the step that is being launched.
  std::vector<StepSequenceResult> results_;
  uint64_t next_age_ = 0;
  uint64_t steps_ = 0;
  int64_t batch_max_ = 0;
  OverheadMeter overhead_;
  kernels::AuditCounts audited_;  // Counted in metrics already.
  bool idle_ = true;
  bool hold_ = false;
  bool handing_off_ = false;
  absl::Status health_;
};

}  // namespace lockstep::worker
