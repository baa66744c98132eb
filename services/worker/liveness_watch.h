#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace lockstep::worker {

// Tells a hung engine from a busy one: alive while its progress moves or it is idle, and for
// `patience` after. Used by one thread.
class LivenessWatch {
 public:
  explicit LivenessWatch(absl::Duration patience) : patience_(patience) {}

  bool Observe(uint64_t progress, bool idle, absl::Time now) {
    if (idle || progress != progress_ || moved_at_ == absl::InfinitePast()) {
      progress_ = progress;
      moved_at_ = now;
    }
    return now - moved_at_ <= patience_;
  }

 private:
  const absl::Duration patience_;
  uint64_t progress_ = 0;
  absl::Time moved_at_ = absl::InfinitePast();
};

}  // namespace lockstep::worker
