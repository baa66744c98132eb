#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lockstep::cli {

// Asks `condition` again and again until it holds; false when `timeout` passed first.
template <typename Condition>
bool WaitUntil(Condition&& condition, absl::Duration timeout,
               absl::Duration period = absl::Milliseconds(20)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(period);
  }
  return true;
}

}  // namespace lockstep::cli
