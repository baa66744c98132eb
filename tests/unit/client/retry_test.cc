#include "services/client/retry.h"

#include <algorithm>
#include <optional>

#include "gtest/gtest.h"

namespace lockstep::client {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);
const absl::Time kBegin = absl::FromUnixSeconds(1000);
const absl::Status kAway = absl::UnavailableError("away");

TEST(RetryTest, PausesDoubleToASecondUntilPatienceEnds) {
  Retry retry(kPatience, kBegin, kBegin + absl::Minutes(1));
  absl::Time now = kBegin + absl::Seconds(20);  // The first call took so long.
  const absl::Time failed_first = now;
  absl::Duration expected = absl::Milliseconds(50);
  while (const auto pause = retry.PauseAfter({.status = kAway, .now = now})) {
    EXPECT_EQ(*pause, expected);
    expected = std::min(2 * expected, absl::Seconds(1));
    now += *pause;
    EXPECT_LE(now, failed_first + kPatience);
  }
  EXPECT_GT(now + expected, failed_first + kPatience);
  EXPECT_EQ(retry.attempts(now).count, 9);  // Pauses of 1.55 s in five steps, then of a second.
  EXPECT_EQ(retry.attempts(now).time, now - kBegin);
}

TEST(RetryTest, OnlyWhatAnotherGatewayMayAnswerIsTriedAgain) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kCancelled}) {
    Retry retry(kPatience, kBegin, absl::InfiniteFuture());
    EXPECT_TRUE(retry.PauseAfter({.status = absl::Status(code, ""), .now = kBegin}).has_value());
  }
  for (const absl::StatusCode code :
       {absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kInternal,
        absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted,
        absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnauthenticated}) {
    Retry retry(kPatience, kBegin, absl::InfiniteFuture());
    EXPECT_EQ(retry.PauseAfter({.status = absl::Status(code, ""), .now = kBegin}), std::nullopt);
  }
}

TEST(RetryTest, NoPauseOutlivesTheDeadlineOrTheOthersPatience) {
  Retry late(kPatience, kBegin, kBegin + absl::Milliseconds(40));
  EXPECT_EQ(late.PauseAfter({.status = kAway, .now = kBegin}), std::nullopt);
  Retry beside_others(kPatience, kBegin, absl::InfiniteFuture());
  EXPECT_TRUE(beside_others
                  .PauseAfter({.status = kAway,
                               .now = kBegin,
                               .lost_since = kBegin - kPatience + absl::Milliseconds(60)})
                  .has_value());
  EXPECT_EQ(
      beside_others.PauseAfter({.status = kAway, .now = kBegin, .lost_since = kBegin - kPatience}),
      std::nullopt);
}

TEST(RetryTest, WhatIsSetDifferentlyIsTriedAgainOnlyAfterAnAnswer) {
  const absl::Status wrong = absl::UnavailableError(
      "failed to connect to all addresses; last error: certificate verify failed");
  for (const bool answered : {false, true}) {
    Retry retry(kPatience, kBegin, absl::InfiniteFuture());
    EXPECT_EQ(
        retry.PauseAfter({.status = wrong, .now = kBegin, .answered_before = answered}).has_value(),
        answered);
  }
}

}  // namespace
}  // namespace lockstep::client
