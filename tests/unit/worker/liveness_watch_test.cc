#include "services/worker/liveness_watch.h"

#include <gtest/gtest.h>

namespace lockstep::worker {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(LivenessWatchTest, StandstillLongerThanPatienceIsDeath) {
  LivenessWatch watch(absl::Seconds(60));
  for (int second = 0; second <= 60; ++second) {
    EXPECT_TRUE(watch.Observe(7, false, kStart + absl::Seconds(second)));
  }
  EXPECT_FALSE(watch.Observe(7, false, kStart + absl::Seconds(61)));
  EXPECT_TRUE(watch.Observe(8, false, kStart + absl::Seconds(62)));
}

TEST(LivenessWatchTest, AStoppedProcessIsNoHungEngine) {
  LivenessWatch watch(absl::Seconds(60));
  EXPECT_TRUE(watch.Observe(7, false, kStart));
  EXPECT_TRUE(watch.Observe(7, false, kStart + absl::Hours(1)));
  EXPECT_TRUE(watch.Observe(7, false, kStart + absl::Hours(1) + absl::Seconds(10)));
  EXPECT_TRUE(watch.Observe(8, false, kStart + absl::Hours(1) + absl::Seconds(20)));
}

TEST(LivenessWatchTest, WhoLooksRarelySeesAHungEngineToo) {
  LivenessWatch watch(absl::Seconds(60));
  for (int look = 0; look <= 4; ++look) {
    EXPECT_TRUE(watch.Observe(7, false, kStart + look * absl::Seconds(45)));
  }
  EXPECT_FALSE(watch.Observe(7, false, kStart + 5 * absl::Seconds(45)));
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
