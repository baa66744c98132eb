#include "common/rpc/callback_threads.h"

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace lockstep::rpc
