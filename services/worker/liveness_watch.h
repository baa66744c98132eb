#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep::worker {

// Tells a hung engine from a busy one: alive while its progress moves or it is idle, and for
// `patience` after. A long time between two looks counts a quarter of that at most: the whole
// process may have been stopped meanwhile, engine and all. Used by one thread.
class LivenessWatch {
 public:
  explicit LivenessWatch(absl::Duration patience) : patience_(patience) {}

  bool Observe(uint64_t progress, bool idle, absl::Time now) {
    standstill_ = idle || progress != progress_
                      ? absl::ZeroDuration()
                      : standstill_ + std::min(now - observed_at_, patience_ / 4);
    progress_ = progress;
    observed_at_ = now;
    return standstill_ <= patience_;
  }

 private:
  const absl::Duration patience_;
  uint64_t progress_ = 0;
  absl::Duration standstill_;
  absl::Time observed_at_ = absl::InfinitePast();
};

}  // namespace lockstep::worker
