#include "common/base/bounded_queue.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(BoundedQueueTest, GivesItemsInTheOrderTheyCame) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.TryPush(int{i}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.TryPop(), i);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueueTest, RefusesWhenFullAndLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueueTest, ClosedQueueTakesNothingAndGivesWhatItHas) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), 1);
  EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), std::nullopt);
}

TEST(BoundedQueueTest, PopWithoutTimeLeftReturnsAtOnce) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()), std::nullopt);
  EXPECT_EQ(queue.Pop(absl::Milliseconds(1)), std::nullopt);
}

TEST(BoundedQueueTest, CloseWakesAWaiter) {
  BoundedQueue<int> queue(1);
  std::jthread waiter([&] { EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), std::nullopt); });
  queue.Close();
}

TEST(BoundedQueueTest, ConcurrentProducersLoseAndDuplicateNothing) {
  constexpr size_t kProducers = 4;
  constexpr size_t kPerProducer = 2000;
  BoundedQueue<size_t> queue(16);
  std::vector<int> seen(kProducers * kPerProducer, 0);
  {
    std::vector<std::jthread> producers;
    for (size_t p = 0; p < kProducers; ++p) {
      producers.emplace_back([&queue, p] {
        for (size_t i = 0; i < kPerProducer; ++i) {
          while (!queue.TryPush(p * kPerProducer + i)) std::this_thread::yield();
        }
      });
    }
    for (size_t n = 0; n < seen.size(); ++n) {
      const std::optional<size_t> item = queue.Pop(absl::Seconds(10));
      ASSERT_TRUE(item.has_value());
      ++seen[*item];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace lockstep::base
