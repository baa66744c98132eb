#include "common/rpc/run_after.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace lockstep::rpc {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// What is handed over, so that the test sees when the last copy is gone.
class NotifiesAtItsEnd {
 public:
  explicit NotifiesAtItsEnd(absl::Notification* gone) : gone_(gone) {}
  ~NotifiesAtItsEnd() { gone_->Notify(); }

 private:
  absl::Notification* const gone_;
};

TEST(RunAfterTest, RunsWhenTheTimeHasPassedAndKeepsNothing) {
  absl::Notification gone;
  auto held = std::make_shared<NotifiesAtItsEnd>(&gone);
  absl::Notification ran;
  const absl::Time begin = absl::Now();
  absl::Time end;
  RunAfter(absl::Milliseconds(20), [&ran, &end, held = std::move(held)] {
    end = absl::Now();
    ran.Notify();
  });
  ASSERT_TRUE(ran.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GE(end - begin, absl::Milliseconds(20));
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kPatience));
}

TEST(RunAfterTest, ManyRunOnceEach) {
  constexpr int kCount = 100;
  const auto ran = std::make_shared<std::atomic<int>>(0);
  absl::Notification all;
  for (int i = 0; i < kCount; ++i) {
    RunAfter(absl::Milliseconds(i % 3), [&all, ran] {
      if (++*ran == kCount) all.Notify();
    });
  }
  EXPECT_TRUE(all.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(*ran, kCount);
}

}  // namespace
}  // namespace lockstep::rpc
