#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "services/worker/engine/step_output.h"

namespace lockstep::worker {

// What the next heartbeat has to tell the scheduler: every prefill cut and every ended ticket, kept
// until a heartbeat that carried them was acknowledged. Thread-safe.
class StepReport {
 public:
  struct Batch {
    std::vector<Cut> cuts;
    std::vector<base::TicketId> ended;
  };

  void Add(std::span<const Cut> cuts, std::span<const base::TicketId> ended) {
    base::MutexLock lock(&mutex_);
    pending_.cuts.insert(pending_.cuts.end(), cuts.begin(), cuts.end());
    pending_.ended.insert(pending_.ended.end(), ended.begin(), ended.end());
  }
  // What is not acknowledged yet, oldest first, at most `items_max` of each kind.
  Batch Peek(size_t items_max) const {
    base::MutexLock lock(&mutex_);
    return {Head(pending_.cuts, items_max), Head(pending_.ended, items_max)};
  }
  // The heartbeat that carried `batch` was accepted.
  void Acknowledge(const Batch& batch) {
    base::MutexLock lock(&mutex_);
    pending_.cuts.erase(pending_.cuts.begin(), pending_.cuts.begin() + batch.cuts.size());
    pending_.ended.erase(pending_.ended.begin(), pending_.ended.begin() + batch.ended.size());
  }
  // A new life begins: the scheduler has forgotten the tickets of the old one.
  void Clear() {
    base::MutexLock lock(&mutex_);
    pending_ = {};
  }

 private:
  template <typename T>
  static std::vector<T> Head(const std::vector<T>& items, size_t items_max) {
    return {items.begin(), items.begin() + std::min(items.size(), items_max)};
  }

  mutable base::Mutex mutex_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::worker
