#include "services/gateway/request_meter.h"

#include <gtest/gtest.h>

namespace lockstep::gateway {
namespace {

class RequestMeterTest : public ::testing::Test {
 protected:
  // The code of a request with this timeout whose client was found to be gone after `took`.
  absl::StatusCode Gone(absl::Duration timeout, absl::Duration took) {
    const RequestMeter::Arrival arrival = meter_.Arrive(clock_.Now() + timeout);
    clock_.Advance(took);
    return meter_.EndOf(arrival, absl::CancelledError()).code;
  }

  base::SimClock clock_;
  metrics::Registry registry_;
  GatewayMetrics metrics_{&registry_};
  const RequestMeter meter_{&clock_, &metrics_};
};

TEST_F(RequestMeterTest, OnlyAnswersHaveALatency) {
  const RequestMeter::Arrival arrival = meter_.Arrive(absl::InfiniteFuture());
  clock_.Advance(absl::Seconds(3));
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const auto status = absl::Status(static_cast<absl::StatusCode>(code), "");
    meter_.Count(meter_.EndOf(arrival, status));
    EXPECT_EQ(metrics_.requests[status.code()].value(), 1) << status;
  }
  EXPECT_EQ(metrics_.request_seconds.count(), 1u);
  EXPECT_EQ(metrics_.request_seconds.sum(), 3);
}

// A timeout of 100.1 s comes here as one of 101 s, and the client's end after 100.1 s.
TEST_F(RequestMeterTest, ClientWhoseTimeHasComeDidNotCancel) {
  constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;
  EXPECT_EQ(Gone(absl::Seconds(101), absl::Seconds(100.1)), kLate);
  EXPECT_EQ(Gone(absl::Milliseconds(20), absl::Milliseconds(20)), kLate);
  EXPECT_EQ(Gone(absl::Milliseconds(20), absl::Milliseconds(30)), kLate);
  EXPECT_EQ(Gone(absl::Milliseconds(1010), absl::Milliseconds(1001)), kLate);
  // It was 25 ms on its way.
  EXPECT_EQ(Gone(absl::Milliseconds(30), absl::Milliseconds(5)), kLate);
  constexpr auto kCancelled = absl::StatusCode::kCancelled;
  EXPECT_EQ(Gone(absl::Seconds(101), absl::Seconds(90)), kCancelled);
  EXPECT_EQ(Gone(absl::Seconds(1), absl::Milliseconds(900)), kCancelled);
  EXPECT_EQ(Gone(absl::InfiniteDuration(), absl::Hours(10)), kCancelled);
}

}  // namespace
}  // namespace lockstep::gateway
