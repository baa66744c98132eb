#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "services/worker/engine/engine_metrics.h"
#include "services/worker/engine/sequence.h"
#include "services/worker/engine/sequence_kv.h"
#include "services/worker/engine/step_planner.h"
#include "services/worker/kv/prefix_index.h"

namespace lockstep::worker {

// A sequence on this worker together with its KV.
struct HeldSequence {
  std::unique_ptr<Sequence> sequence;
  SequenceKv kv;
  uint64_t age = 0;  // Order of arrival: the lower the older.
  // Since when it waits for credit.
  std::optional<absl::Time> stalled_since;
  // The block of its tokens that another sequence is computing for it.
  std::optional<int64_t> prefix_wait_block;
  std::optional<absl::Time> last_token_time;
  // Its index in the step that was launched last with it.
  int step_index = -1;
};

// Decides what the next step runs, and moves KV blocks so that it can. Rules:
//  - Sequences with blocks go first, oldest first; then waiting ones start, oldest first, and none
//    overtakes an older one that does not fit. Sequences without credit are passed over.
//  - A sequence starts when its whole prefill fits and one more block for each running one is
//    free, so that it is not preempted at once.
//  - A running sequence that needs a block takes it from the youngest one that is younger than
//    itself, else from one without credit. The oldest that can run may also start that way. So the
//    oldest always progresses, and each becomes the oldest.
//  - A sequence whose next block another one is computing waits for it instead of computing it too.
// Used by the engine loop's thread.
class StepSelector {
 public:
  struct Planned {
    HeldSequence* held = nullptr;
    int64_t tokens = 0;
  };

  StepSelector(const StepPlanner::Limits& limits, PrefixIndex* index, EngineMetrics* metrics)
      : index_(index), metrics_(metrics), planner_(limits) {}

  // The sequence waits from now on; it stays the caller's until Remove.
  void Add(HeldSequence* held);
  // Frees its blocks.
  void Remove(HeldSequence* held);

  // What the next step runs, oldest first; empty when nothing can.
  std::vector<Planned> Select(absl::Time now);

  int64_t running_count() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting_count() const { return static_cast<int64_t>(waiting_.size()); }

 private:
  using ByAge = std::map<uint64_t, HeldSequence*>;

  void NoteStalls(absl::Time now);
  // A sequence that waits for results of steps in flight is not one.
  HeldSequence* OldestRunnable() const;
  void PlanRunning(HeldSequence* held, std::vector<Planned>* planned);
  // False when it does not fit, so that no younger one may start either.
  bool StartWaiting(HeldSequence* held, bool may_preempt, absl::Time now,
                    std::vector<Planned>* planned);
  bool WaitsForPrefix(HeldSequence* held, int64_t matched_blocks);
  // Without looking into the index: moves the wait on to the next block of its prefix in work.
  bool StillWaitsForPrefix(HeldSequence* held);
  bool IsInWork(HeldSequence* held, int64_t block);
  // Whole blocks of its tokens that it could take from others.
  int64_t UsefulBlocks(const HeldSequence& held) const;
  void NotePrefill(HeldSequence* held);
  // Takes the blocks of another sequence; false when there is none to take from.
  bool PreemptFor(const HeldSequence* held);
  bool PreemptLongStalled(absl::Time now);
  void Preempt(HeldSequence* victim);

  PrefixIndex* const index_;
  EngineMetrics* const metrics_;
  StepPlanner planner_;
  ByAge running_;  // With blocks.
  ByAge waiting_;  // Without.
  // Keys of blocks that running sequences will compute; filled in a step that needs it.
  absl::flat_hash_set<base::Digest128> blocks_in_work_;
  bool prefills_collected_ = false;
};

}  // namespace lockstep::worker
