#include "services/worker/liveness_watch.h"

#include <gtest/gtest.h>

namespace lockstep::worker {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(LivenessWatchTest, StandstillLongerThanPatienceIsDeath) {
  LivenessWatch watch(absl::Seconds(60));
  EXPECT_TRUE(watch.Observe(7, false, kStart));
  EXPECT_TRUE(watch.Observe(7, false, kStart + absl::Seconds(60)));
  EXPECT_FALSE(watch.Observe(7, false, kStart + absl::Seconds(61)));
  EXPECT_TRUE(watch.Observe(8, false, kStart + absl::Seconds(62)));
}

TEST(LivenessWatchTest, IdleEngineNeedsNoProgress) {
  LivenessWatch watch(absl::Seconds(60));
  for (int minute = 0; minute < 10; ++minute) {
    EXPECT_TRUE(watch.Observe(7, true, kStart + absl::Minutes(minute)));
  }
  EXPECT_TRUE(watch.Observe(7, false, kStart + absl::Minutes(10)));
}

}  // namespace
}  // namespace lockstep::worker
