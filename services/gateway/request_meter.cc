#include "services/gateway/request_meter.h"

#include <algorithm>

namespace lockstep::gateway {
namespace {

// A client ends its call by its own clock, and tells its timeout rounded up, by a hundredth at
// most. What it tells counts from when it comes here: on a busy machine that takes its time. Its
// end comes so much before the deadline that is known here.
constexpr double kRounding = 0.02;
constexpr absl::Duration kWayMax = absl::Milliseconds(50);

}  // namespace

RequestEnd RequestMeter::EndOf(const Arrival& arrival, const absl::Status& status) const {
  RequestEnd end{.code = status.code(), .took = clock_->Now() - arrival.at};
  const absl::Duration margin = std::max(kWayMax, end.took * kRounding);
  if (end.code == absl::StatusCode::kCancelled &&
      arrival.at + end.took + margin >= arrival.deadline) {
    end.code = absl::StatusCode::kDeadlineExceeded;
  }
  return end;
}

void RequestMeter::Count(const RequestEnd& end) const {
  metrics_->requests[end.code].Increment();
  if (end.code == absl::StatusCode::kOk) metrics_->request_seconds.Observe(end.took);
}

}  // namespace lockstep::gateway
