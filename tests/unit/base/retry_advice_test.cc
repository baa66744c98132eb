#include "common/base/retry_advice.h"

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(RetryAdviceTest, TravelsInsideTheStatus) {
  const RetryAdvice advice = {.retryable = true, .delay = absl::Milliseconds(1250)};
  const absl::Status status = WithRetryAdvice(absl::ResourceExhaustedError("full"), advice);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "full");
  EXPECT_EQ(GetRetryAdvice(status), advice);
}

TEST(RetryAdviceTest, NewerAdviceReplacesOlder) {
  absl::Status status = WithRetryAdvice(absl::UnavailableError("gone"), {.retryable = true});
  status = WithRetryAdvice(status, {.retryable = false});
  EXPECT_FALSE(GetRetryAdvice(status).retryable);
}

TEST(RetryAdviceTest, WithoutAdviceOnlyUnavailableIsRetryable) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "plain");
    EXPECT_EQ(GetRetryAdvice(status).retryable, code == 14) << status;
    EXPECT_EQ(GetRetryAdvice(status).delay, absl::ZeroDuration());
  }
}

TEST(RetryAdviceTest, SuccessCarriesNone) {
  EXPECT_EQ(WithRetryAdvice(absl::OkStatus(), {.retryable = true}), absl::OkStatus());
}

TEST(RetryAdviceTest, ForeignPayloadIsIgnored) {
  absl::Status status = absl::UnavailableError("gone");
  status.SetPayload("lockstep.v1/retry_advice", absl::Cord("nonsense"));
  EXPECT_TRUE(GetRetryAdvice(status).retryable);
}

}  // namespace
}  // namespace lockstep::base
