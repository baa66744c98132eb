#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "services/gateway/gateway_metrics.h"

namespace lockstep::gateway {

// How a request ended, as its client sees it.
struct RequestEnd {
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::Duration took;  // From its arrival.
};

// Counts requests by the status that their clients got. Each call of Generate, GenerateStream and
// Score is one, and each prompt of a GenerateMany stream, also one that attached to another's
// answer. Thread-safe; copies count into the same metrics.
//
//   const RequestMeter::Arrival arrival = meter.Arrive(scope().deadline);
//   meter.Count(arrival, status);  // once
class RequestMeter {
 public:
  struct Arrival {
    absl::Time at;
    absl::Time deadline;  // Of the client's call.
  };

  RequestMeter(const base::Clock* clock, GatewayMetrics* metrics)
      : clock_(clock), metrics_(metrics) {}

  Arrival Arrive(absl::Time deadline) const { return {clock_->Now(), deadline}; }
  // CANCELLED is what a handler knows of a client that is gone. One whose deadline has come gave
  // up for that, and its own call ended with DEADLINE_EXCEEDED.
  RequestEnd EndOf(const Arrival& arrival, const absl::Status& status) const;
  void Count(const RequestEnd& end) const;
  void Count(const Arrival& arrival, const absl::Status& status) const {
    Count(EndOf(arrival, status));
  }

 private:
  const base::Clock* const clock_;
  GatewayMetrics* const metrics_;
};

}  // namespace lockstep::gateway
