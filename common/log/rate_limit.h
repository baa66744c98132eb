#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace lockstep::log {

// Lets a line through at most once a period: what a client or a lost peer can cause many times a
// second must not fill the log. Thread-safe. Example:
//
//   if (const auto held_back = limit.Pass(clock->Now())) {
//     logger.Warning("call_refused", {{"method", method}, {"held_back", *held_back}});
//   }
class RateLimit {
 public:
  explicit RateLimit(absl::Duration period) : period_(period) {}

  // How many were held back since the last one that passed; nullopt: so is this one.
  std::optional<int64_t> Pass(absl::Time now) {
    base::MutexLock lock(&mutex_);
    if (now < next_) {
      ++held_back_;
      return std::nullopt;
    }
    next_ = now + period_;
    return std::exchange(held_back_, 0);
  }

 private:
  const absl::Duration period_;
  base::Mutex mutex_;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t held_back_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::log
