#pragma once

#include <deque>
#include <utility>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace lockstep::gateway {

// Rate of a counter over the last minute, from readings taken now and then. Thread-safe.
class ThroughputMeter {
 public:
  void Read(absl::Time now, double total) {
    base::MutexLock lock(&mutex_);
    readings_.emplace_back(now, total);
    while (now - readings_.front().first > absl::Minutes(1)) readings_.pop_front();
  }
  // 0 when nothing was seen.
  double per_second() const {
    base::MutexLock lock(&mutex_);
    if (readings_.size() < 2) return 0;
    const auto& [first_time, first_total] = readings_.front();
    const auto& [last_time, last_total] = readings_.back();
    return (last_total - first_total) / absl::ToDoubleSeconds(last_time - first_time);
  }

 private:
  mutable base::Mutex mutex_;
  std::deque<std::pair<absl::Time, double>> readings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::gateway
