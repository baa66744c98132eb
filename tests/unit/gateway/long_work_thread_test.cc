#include "services/gateway/long_work_thread.h"

#include <sys/resource.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace lockstep::gateway {
namespace {

class LongWorkThreadTest : public ::testing::Test {
 protected:
  metrics::Registry registry_;
  metrics::Counter posted_{&registry_, "lockstep_test_posted_total", "Of the test."};
};

TEST_F(LongWorkThreadTest, WorksInOrderOfArrivalOnAThreadOfItsOwn) {
  std::vector<int> order;
  absl::Notification done;
  LongWorkThread thread(&posted_);
  for (int i = 0; i < 100; ++i) thread.Post([&order, i] { order.push_back(i); });
  std::thread::id worker;
  thread.Post([&] {
    worker = std::this_thread::get_id();
    done.Notify();
  });
  done.WaitForNotification();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST_F(LongWorkThreadTest, ShortWorkStaysOnItsThreadAndLongWorkLeavesIt) {
  LongWorkThread thread(&posted_);
  std::thread::id ran;
  thread.RunOrPost(LongWorkThread::IsShortAnswer(1000), [&] { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, std::this_thread::get_id());
  absl::Notification done;
  thread.RunOrPost(LongWorkThread::IsShortAnswer(20 << 20), [&] {
    ran = std::this_thread::get_id();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_NE(ran, std::this_thread::get_id());
  EXPECT_EQ(posted_.value(), 1);
}

TEST_F(LongWorkThreadTest, GivesWayToThreadsThatServeCalls) {
  int nice = 0;
  absl::Notification done;
  LongWorkThread thread(&posted_);
  thread.Post([&] {
    nice = getpriority(PRIO_PROCESS, 0);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_GT(nice, getpriority(PRIO_PROCESS, 0));
}

TEST_F(LongWorkThreadTest, EndsWithTheWorkInHandAndFreesWhatWaits) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> waiting = held;
  absl::Notification begun, go_on;
  bool finished = false;
  bool ran = false;
  auto thread = std::make_unique<LongWorkThread>(&posted_);
  thread->Post([&] {
    begun.Notify();
    go_on.WaitForNotification();
    finished = true;
  });
  thread->Post([&ran, held = std::move(held)] { ran = true; });
  begun.WaitForNotification();
  std::thread end([&] { thread.reset(); });
  // It drops what waits before it waits for the work in hand.
  while (!waiting.expired()) std::this_thread::yield();
  EXPECT_FALSE(finished);
  go_on.Notify();
  end.join();
  EXPECT_TRUE(finished);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace lockstep::gateway
