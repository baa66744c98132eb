#include "common/log/rate_limit.h"

#include "gtest/gtest.h"

namespace lockstep::log {
namespace {

TEST(RateLimitTest, OnePassesEachPeriodAndTellsHowManyDidNot) {
  RateLimit limit(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(limit.Pass(start), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Pass(start + absl::Seconds(i)), std::nullopt);
  EXPECT_EQ(limit.Pass(start + absl::Seconds(10)), 5);
  EXPECT_EQ(limit.Pass(start + absl::Seconds(19)), std::nullopt);
  EXPECT_EQ(limit.Pass(start + absl::Seconds(100)), 1);
  EXPECT_EQ(limit.Pass(start + absl::Seconds(110)), 0);
}

}  // namespace
}  // namespace lockstep::log
