#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "services/router/route_policy.h"
#include "services/router/sequence_types.h"

namespace lockstep::router {

// The workers as this router sees them: the scheduler's newest snapshot, corrected by what the
// router itself has done since and has learned from its streams. Not thread-safe.
class WorkerTable {
 public:
  struct Options {
    // After its stream broke, a worker gets nothing for this long; doubled each time it breaks
    // again without a frame in between.
    absl::Duration suspect_initial = absl::Milliseconds(100);
    absl::Duration suspect_max = absl::Seconds(1);
    // A worker that the scheduler no longer lists keeps its sequences as long as its frames come
    // at least this often: a restarted scheduler does not know its workers at once.
    absl::Duration unlisted_silence_max = absl::Seconds(1);
  };

  struct Row {
    WorkerKey worker;
    std::string address;
    absl::Duration lease;
    uint64_t name_hash = 0;
    bool listed = false;  // In the newest snapshot.
    bool draining = false;
    int64_t others_running = 0;  // Of other routers, by the newest snapshot.
    int64_t own_admitting = 0;   // Asked for with this worker as first candidate.
    int64_t own_running = 0;     // Tickets held on it.
    StreamId stream;             // 0: none is open.
    int breaks = 0;              // Streams lost since the last frame.
    absl::Time suspect_until = absl::InfinitePast();
    absl::Time last_sign = absl::InfinitePast();  // Newest frame, or when it was last listed.
    absl::Time idle_since = absl::InfinitePast();
    int usable_index = -1;  // In the span of usable workers.
    int64_t load() const { return others_running + own_admitting + own_running; }
  };

  explicit WorkerTable(Options options) : options_(options) {}

  // True when a worker came that was not there before. Workers that were declared lost stay away:
  // snapshots and losses come over different streams.
  bool ApplySnapshot(const std::vector<WorkerState>& workers, absl::Time now);
  // Removes the worker for good.
  void Lose(const WorkerKey& worker);
  // Removes unlisted workers that hold nothing.
  void Sweep();

  void MarkDraining(const WorkerKey& worker);
  void StreamBroke(const WorkerKey& worker, absl::Time now);
  void FrameCame(Row* row, absl::Time now);

  Row* Find(const WorkerKey& worker);
  void AddAdmitting(const WorkerKey& worker, int64_t count);
  void AddRunning(const WorkerKey& worker, int64_t count, absl::Time now);

  // Workers that take new sequences at `now`, ascending by id.
  std::span<const WorkerLoad> Usable(absl::Time now);
  // When a suspect may be tried again; infinite when there is none.
  absl::Time next_suspect_end() const { return next_suspect_end_; }
  // Unlisted workers with sequences that have been silent for too long.
  std::vector<WorkerKey> SilentUnlisted(absl::Time now) const;
  // Listed workers without sequences since `before` whose stream is open.
  std::vector<WorkerKey> IdleSince(absl::Time before) const;
  size_t listed_count() const;
  // Some unlisted worker still has sequences, so that time alone may lose it.
  bool has_unlisted() const { return unlisted_count_ > 0; }

 private:
  void UpdateLoad(Row* row);

  const Options options_;
  std::map<WorkerKey, Row> rows_;
  std::set<WorkerKey> lost_;
  std::deque<WorkerKey> lost_order_;
  std::vector<WorkerLoad> usable_;
  bool usable_stale_ = true;
  absl::Time next_suspect_end_ = absl::InfiniteFuture();
  int64_t unlisted_count_ = 0;
};

}  // namespace lockstep::router
