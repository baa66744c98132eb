#include "common/base/clock.h"

#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(SimClockTest, MovesOnlyWhenTold) {
  SimClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), absl::FromUnixMillis(101500));
}

TEST(RealClockTest, FollowsTheSystem) {
  const absl::Time before = absl::Now();
  const absl::Time now = RealClock().Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
}

// A plain wait_for() with the largest duration overflows its clock and returns at once, which turns
// every waiting loop into a busy one.
TEST(CondVarTest, InfiniteTimeoutWaits) {
  Mutex mutex;
  CondVar changed;
  bool waiting = false;
  bool released = false;
  std::jthread releaser([&] {
    for (bool ready = false; !ready;) {
      MutexLock lock(&mutex);
      ready = waiting;
      released = ready;
      if (ready) changed.NotifyAll();
    }
  });
  MutexLock lock(&mutex);
  waiting = true;
  while (!released) {
    ASSERT_TRUE(changed.WaitFor(&mutex, absl::InfiniteDuration()));
  }
}

TEST(CondVarTest, TimeoutEndsTheWait) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(&mutex);
  const absl::Time deadline = absl::Now() + absl::Milliseconds(2);
  while (changed.WaitFor(&mutex, absl::Milliseconds(2))) {
    ASSERT_LT(absl::Now(), deadline + absl::Seconds(10)) << "only spurious wake-ups";
  }
}

}  // namespace
}  // namespace lockstep::base
