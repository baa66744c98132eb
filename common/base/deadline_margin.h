#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace lockstep::base {

// Kept back at each hop, so that the inner one ends first and what it has, be it an error or half
// an answer, reaches its caller before the caller gives up.
struct DeadlineMargin {
  absl::Duration max = absl::Milliseconds(50);
  // Never more than this part of what is left: a short budget is not eaten by margins.
  double fraction_max = 0.1;
};

// What a hop that has `left` gives to the next one; infinite stays infinite.
inline absl::Duration LeftForNextHop(absl::Duration left, DeadlineMargin margin = {}) {
  return left - std::min(margin.max, left * margin.fraction_max);
}

}  // namespace lockstep::base
