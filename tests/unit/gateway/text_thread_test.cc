#include "services/gateway/text_thread.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace lockstep::gateway {
namespace {

TEST(TextThreadTest, WorksInOrderOfArrivalOnAThreadOfItsOwn) {
  std::vector<int> order;
  absl::Notification done;
  TextThread texts;
  for (int i = 0; i < 100; ++i) texts.Post([&order, i] { order.push_back(i); });
  std::thread::id worker;
  texts.Post([&] {
    worker = std::this_thread::get_id();
    done.Notify();
  });
  done.WaitForNotification();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(TextThreadTest, EndsWithTheWorkInHandAndFreesWhatWaits) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> waiting = held;
  absl::Notification begun, go_on;
  bool finished = false;
  bool ran = false;
  auto texts = std::make_unique<TextThread>();
  texts->Post([&] {
    begun.Notify();
    go_on.WaitForNotification();
    finished = true;
  });
  texts->Post([&ran, held = std::move(held)] { ran = true; });
  begun.WaitForNotification();
  std::thread end([&] { texts.reset(); });
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
