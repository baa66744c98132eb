// What requests leave behind: nothing.
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/live_bytes.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateCalls;
using testing::LiveBytes;
using testing::RolloutStub;

constexpr int kBatch = 64;

v1::GenerateRequest Request(int number) {
  v1::GenerateRequest request;
  // Below and above one block of KV, some shared between neighbours, some of a group.
  for (int i = 0; i < 8 + number % 100; ++i) {
    request.mutable_prompt_ids()->add_ids((number / 4 * 31 + i * 7) % 60);
  }
  request.set_n(1 + number % 3);
  request.set_seed(number);
  request.mutable_stop()->set_max_new_tokens(number % 10 == 9 ? -1 : 1 + number % 20);
  return request;
}

// Of ten requests one is refused and one is given up by its client.
void RunRequests(ClusterHarness* cluster, int count) {
  for (int first = 0; first < count; first += kBatch) {
    GenerateCalls calls(cluster->stub());
    for (int i = 0; i < kBatch; ++i) calls.Start(Request(first + i));
    for (int i = 0; i < kBatch; i += 10) calls.Cancel(i);
    calls.Wait();
  }
  // Cached prefixes are no leak, but fill the cache by and by.
  EXPECT_TRUE(CallNow(cluster->stub(), &RolloutStub::FlushCache, {}).ok());
}

double WorkInWorker(const ClusterHarness& cluster, int index) {
  return cluster.WorkerMetric(index, "lockstep_worker_sequences_running") +
         cluster.WorkerMetric(index, "lockstep_worker_sequences_waiting") +
         cluster.WorkerMetric(index, "lockstep_worker_kv_blocks_used");
}

double WorkInCluster(const ClusterHarness& cluster) {
  return cluster.GatewayMetric("lockstep_gateway_samples_open") +
         cluster.GatewayMetric("lockstep_gateway_kept_result_bytes") +
         cluster.RouterMetric("lockstep_router_sequences") +
         cluster.SchedulerMetric("lockstep_scheduler_queued_sequences") +
         cluster.SchedulerMetric("lockstep_scheduler_running_sequences") +
         cluster.SchedulerMetric("lockstep_scheduler_kv_blocks_reserved") +
         WorkInWorker(cluster, 0) + WorkInWorker(cluster, 1);
}

TEST(MemoryTest, RequestsLeaveNoWorkAndNoMemoryBehind) {
  ClusterHarness cluster({});
  ASSERT_TRUE(cluster.Start().ok());
  RunRequests(&cluster, 2000);  // Connections, threads, caches of the allocator.
  const int64_t before = LiveBytes();

  constexpr int kRequests = 6000;
  RunRequests(&cluster, kRequests);
  EXPECT_TRUE(ClusterHarness::WaitUntil([&] { return WorkInCluster(cluster) == 0; }));
  // The last to go are plans, which the scheduler keeps for a lease and a ticket's life.
  constexpr int64_t kBytesARequestMax = 40;
  EXPECT_TRUE(ClusterHarness::WaitUntil(
      [&] { return LiveBytes() - before <= kBytesARequestMax * kRequests; }, absl::Seconds(30)))
      << LiveBytes() - before << " bytes stay";
}

}  // namespace
}  // namespace lockstep
