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

// Each call would cost a thread switch more.
TEST_F(CallbackThreadsOfCallsTest, TheEndOfACallIsToldOnOneOfThemToo) {
  constexpr int kCalls = 100;
  base::Mutex mutex;
  std::set<std::thread::id> starting;
  std::set<std::thread::id> closing;
  service_.unary.start = [&](UnaryEcho& handler) {
    {
      base::MutexLock lock(&mutex);
      starting.insert(std::this_thread::get_id());
    }
    handler.Respond(EchoMessage());
  };
  service_.unary.closed = [&](UnaryEcho&, const absl::Status&) {
    base::MutexLock lock(&mutex);
    closing.insert(std::this_thread::get_id());
  };
  for (int i = 0; i < kCalls; ++i) EXPECT_TRUE(Call(EchoMessage()).ok());
  ASSERT_TRUE(service_.tally.closed.WaitFor(kCalls));
  base::MutexLock lock(&mutex);
  starting.insert(closing.begin(), closing.end());
  EXPECT_LE(starting.size(), static_cast<size_t>(CallbackThreads()));
}

}  // namespace
}  // namespace lockstep::rpc
