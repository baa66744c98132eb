#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::kernels::cpu {
namespace {

TEST(ThreadPoolTest, RunCallsEachThreadOnceAndReturnsAfterAll) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int round = 1; round <= 300; ++round) {
      pool.Run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
      for (const int count : calls) ASSERT_EQ(count, round);
    }
  }
}

TEST(ThreadPoolTest, ParallelForCoversEveryIndexOnce) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 3, 4, 100, 101}) {
    for (const int64_t grain : {1, 7, 60, 1000}) {
      std::vector<int> seen(static_cast<size_t>(count));
      pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(count), 1)) << count << " by " << grain;
    }
  }
}

TEST(ThreadPoolTest, WorkUpToTheGrainStaysOnTheCaller) {
  ThreadPool pool(4);
  std::atomic<int> parts = 0;
  pool.ParallelFor(10, 10, [&](int64_t begin, int64_t end, int thread) {
    ++parts;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    EXPECT_EQ(thread, 0);
  });
  EXPECT_EQ(parts, 1);
}

TEST(ThreadPoolTest, SleepingThreadsWakeUp) {
  ThreadPool pool(2);
  std::atomic<int> calls = 0;
  for (int round = 0; round < 3; ++round) {
    pool.Run([&](int) { ++calls; });
    // Longer than the workers spin.
    for (std::atomic<int> i = 0; i < 1000000;) ++i;
  }
  EXPECT_EQ(calls, 6);
}

}  // namespace
}  // namespace lockstep::kernels::cpu
