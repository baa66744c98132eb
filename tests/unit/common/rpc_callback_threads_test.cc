#include "common/rpc/callback_threads.h"

#include <set>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

namespace lockstep::rpc {
namespace {

// With the graph, the second order is a cycle in it, and the process dies.
TEST(CallbackThreadsTest, LockOrderOfGrpcIsNotRecorded) {
  HoldCallbackThreads();
  absl::Mutex first;
  absl::Mutex second;
  {
    absl::MutexLock outer(&first);
    absl::MutexLock inner(&second);
  }
  absl::MutexLock outer(&second);
  absl::MutexLock inner(&first);
}

using CallbackThreadsOfCallsTest = EchoFixture;

TEST_F(CallbackThreadsOfCallsTest, AllAreAnsweredByThoseThatDoNotSleep) {
  constexpr int kCalls = 500;
  service_.unary.start = [](UnaryEcho& handler) { handler.Respond(EchoMessage()); };
  base::Mutex mutex;
  std::set<std::thread::id> threads;
  WaitableCount done;
  for (int i = 0; i < kCalls; ++i) {
    CallUnary(stub_->async(), &EchoAsync::Unary, {}, {},
              [&](const absl::StatusOr<EchoMessage>& response) {
                EXPECT_TRUE(response.ok()) << response.status();
                {
                  base::MutexLock lock(&mutex);
                  threads.insert(std::this_thread::get_id());
                }
                done.Add(1);
              });
  }
  ASSERT_TRUE(done.WaitFor(kCalls));
  EXPECT_LE(threads.size(), static_cast<size_t>(CallbackThreads()));
}

}  // namespace
}  // namespace lockstep::rpc
