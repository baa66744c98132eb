#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// What the scheduler tells a worker, beside the epochs.
struct ControlCommand {
  std::vector<base::RequestId> abort_requests;
  bool abort_all = false;  // Sequences that entered before the admission epoch of the call.
  bool hold = false;       // Sequences stop where they are. Set when it is sent.
  bool flush_cache = false;
  std::optional<std::string> flush_namespace;
};

struct ControlReply {
  int64_t aborted_sequences = 0;
  std::vector<base::RequestId> known_requests;
  int64_t freed_blocks = 0;
};

// One command on its way to all living workers. Over when each has answered, was lost, or has not
// answered by the deadline: a failed call is made again until then, since a worker that has just
// registered may not know it yet. Not thread-safe.
class ControlRound {
 public:
  // Waits for an answer of `worker` until `deadline`.
  void Add(const WorkerName& worker, absl::Time deadline) { pending_[worker] = deadline; }
  // An answer, or the error of a call.
  void OnReply(const WorkerName& worker, const absl::StatusOr<ControlReply>& reply);
  // Workers whose call failed since the last time, to be called again.
  std::vector<WorkerName> TakeFailed();
  // Its lease has ended; nobody waits for it any longer.
  void OnLost(const WorkerName& worker);
  // Those that did not answer by their deadline, now silent.
  std::vector<WorkerName> TakeLate(absl::Time now);

  bool done() const { return pending_.empty(); }
  int64_t aborted_sequences() const { return aborted_sequences_; }
  int64_t freed_blocks() const { return freed_blocks_; }
  const absl::flat_hash_set<base::RequestId>& known_requests() const { return known_requests_; }
  // In order of their silence.
  const std::vector<WorkerName>& silent() const { return silent_; }

 private:
  absl::btree_map<WorkerName, absl::Time> pending_;  // With deadlines.
  absl::btree_set<WorkerName> failed_;               // Of the pending ones.
  int64_t aborted_sequences_ = 0;
  int64_t freed_blocks_ = 0;
  absl::flat_hash_set<base::RequestId> known_requests_;
  std::vector<WorkerName> silent_;
};

}  // namespace lockstep::scheduler
