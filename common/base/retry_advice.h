#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lockstep::base {

// What the giver of an error knows about trying again. It travels inside the absl::Status as a
// payload, and over the wire as part of lockstep.v1.ErrorDetail.
struct RetryAdvice {
  // The same request may succeed later or elsewhere.
  bool retryable = false;
  // How long to wait before that; zero where nothing is known.
  absl::Duration delay = absl::ZeroDuration();
  friend bool operator==(const RetryAdvice&, const RetryAdvice&) = default;
};

// `status` with `advice` attached, replacing older advice. An OK status stays as it is.
absl::Status WithRetryAdvice(absl::Status status, RetryAdvice advice);

// The advice attached to `status`. Without any, only kUnavailable is retryable: every other code
// may mean something that a second try cannot mend.
RetryAdvice GetRetryAdvice(const absl::Status& status);

}  // namespace lockstep::base
