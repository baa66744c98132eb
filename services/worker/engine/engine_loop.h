#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "services/text/tokenizer.h"
#include "services/worker/engine/sequence_start.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/engine/step_output.h"

namespace lockstep::worker {

struct EngineMetrics;

struct EngineOptions {
  int64_t split_kv_size = 0;
  int64_t chunk_tokens = 0;        // Prefill tokens a step; a multiple of split_kv_size.
  int64_t sequences_max = 0;       // In one step.
  int64_t context_tokens_max = 0;  // Prompt plus generated tokens of one sequence.
  int64_t waiting_max = 0;         // Started but not yet in a step.
  int32_t vocabulary = 0;          // Rows of lm_head: the range of valid ids.
  bool prefix_cache = true;
  int64_t shadow_every_steps = 0;  // One step in so many has a shadow; 0: none. See OverheadMeter.
  base::WeightVersion weight_version;
};

struct EngineDeps {
  StepExecutor* executor = nullptr;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // Null: stop strings are refused.
  const base::Clock* clock = nullptr;
  EngineMetrics* metrics = nullptr;
  // Receives every step's results, on the loop's thread; must not block or call back into the loop.
  std::function<void(StepOutput)> on_step;
  // Called once, on the same thread, when the executor failed. Its sequences get no end: they go on
  // elsewhere when the worker gives up its lease. May be empty.
  std::function<void(absl::Status)> on_failure;
};

// What runs and waits, for heartbeats. Taken between steps.
struct EngineSnapshot {
  struct Held {
    base::TicketId ticket;
    base::SequenceId sequence;
    int64_t attempt = 0;
    int64_t kv_blocks = 0;
  };
  uint64_t steps = 0;
  // Steps, and work done inside the running one: goes up unless the engine hangs or is idle.
  uint64_t progress = 0;
  bool idle = true;
  bool ending = false;         // AbortAll was called, and what it ends has not ended yet.
  int64_t kv_blocks_free = 0;  // Cached blocks that can be evicted included.
  std::vector<Held> held;
};

// The one owner of sequences, KV blocks and the prefix index of a worker. A single thread takes
// commands, plans a step, executes it, delivers its results, and repeats; all public methods are
// thread-safe and only pass a command to that thread. Example:
//   auto loop = EngineLoop::Create(options, deps);
//   (*loop)->Start(std::move(starts));     // results arrive in deps.on_step
class EngineLoop {
 public:
  static absl::StatusOr<std::unique_ptr<EngineLoop>> Create(EngineOptions options, EngineDeps deps);
  ~EngineLoop();  // Ends the thread; sequences that still run are dropped without an output.

  // One status a sequence, in order: OK, or why it was refused (INVALID_ARGUMENT: plan, ids,
  // lengths; RESOURCE_EXHAUSTED: waiting_max; FAILED_PRECONDITION: handing off). Samples of a group
  // that start in one call share one prefill of their prompt.
  std::vector<absl::Status> Start(std::vector<SequenceStart> starts);
  void Cancel(base::TicketId ticket);  // Its end arrives as kAbort, with what was generated.
  void AddCredit(base::TicketId ticket, int64_t tokens);

  // Ends everything as soon as the running step has ended, and does not wait for that: a step may
  // hang. EngineSnapshot::ending tells when it is done.
  void AbortAll();

  // These wait until the running step has ended and they are done, or until `deadline`:
  // DEADLINE_EXCEEDED then, and what the step held up is not done later either.
  struct Aborted {
    int64_t sequences = 0;               // Ended by the call.
    std::vector<base::RequestId> known;  // Those requests that had one here.
  };
  absl::StatusOr<Aborted> AbortRequests(std::vector<base::RequestId> requests, absl::Time deadline);
  // Returns the number of sequences ended by the call.
  absl::StatusOr<int64_t> AbortOlderThan(base::Epoch epoch, absl::Time deadline);
  // Sequences stop where they are, KV kept.
  absl::Status SetHold(bool hold, absl::Time deadline);
  // Returns the number of blocks freed; nullopt is every namespace.
  absl::StatusOr<int64_t> FlushCache(std::optional<std::string> cache_namespace,
                                     absl::Time deadline);
  // Gives every sequence back for another worker. New ones are refused in any case.
  absl::Status HandOffAll(absl::Time deadline);
  // Only waits: tells an engine that works from one that hangs.
  absl::Status AwaitStepEnd(absl::Time deadline);

  EngineSnapshot Snapshot() const;
  // Set once the executor failed: no step will run again, though one may be stuck.
  absl::Status health() const;

 private:
  class Impl;
  explicit EngineLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::worker
