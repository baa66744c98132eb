// Which worker serves what: fair shares, workers that go and come back, drains, restarts of what
// decides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;
using testing::GenerateQuietly;
using testing::RolloutStub;

v1::GenerateRequest Request(int i, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text(absl::StrCat(i * 7919 % 1000, "*", i, "+5="));
  request.set_seed(i);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

class MembershipTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(WaitForRouter(2));
  }
  // The router, which chooses, learns of a worker a moment after the scheduler.
  bool WaitForRouter(int workers) {
    return ClusterHarness::WaitUntil(
        [&] { return cluster_.RouterMetric("lockstep_router_workers") == workers; });
  }
  RolloutStub* stub() { return cluster_.stub(); }

  v1::GetServerInfoResponse Info() {
    const auto info = CallNow(stub(), &RolloutStub::GetServerInfo, {});
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : v1::GetServerInfoResponse();
  }
  std::map<std::string, uint64_t> Incarnations() {
    std::map<std::string, uint64_t> incarnations;
    const v1::GetServerInfoResponse info = Info();
    for (const v1::WorkerInfo& worker : info.workers()) {
      incarnations[worker.worker_id()] = worker.incarnation();
    }
    return incarnations;
  }
  // The worker that a request with this routing key meets while nothing else runs.
  std::string WorkerOf(const std::string& routing_key) {
    v1::GenerateRequest request = Request(1, 1);
    request.set_routing_key(routing_key);
    const auto answer = GenerateAll(stub(), {request})[0];
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->samples(0).usage().worker_id() : "";
  }
  std::vector<v1::GenerateRequest> Requests(int count, int64_t tokens) {
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < count; ++i) requests.push_back(Request(i, tokens));
    return requests;
  }
  void WaitUntilBothRun() {
    ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
      return cluster_.WorkerMetric(0, "lockstep_worker_sequences_running") >= 2 &&
             cluster_.WorkerMetric(1, "lockstep_worker_sequences_running") >= 2;
    }));
  }

  // Either worker has room for everything, so that the choice is the router's.
  ClusterHarness cluster_{
      {.model = "deploy/demo-model", .kv_bytes = int64_t{64} << 20, .sequences_max = 256}};
};

TEST_F(MembershipTest, TwoWorkersShareUniquePromptsWhileHealthIsProbed) {
  const auto channel = rpc::MakeChannel(cluster_.gateway_address());
  std::atomic<bool> done = false;
  std::atomic<int> probes = 0;
  std::thread prober([&] {
    while (!done) {
      for (const char* name : {"ready", "live", "started"}) {
        const auto healthy = rpc::CheckHealth(channel, name, absl::Seconds(10));
        EXPECT_TRUE(healthy.ok() && *healthy) << name << ": " << healthy.status();
        ++probes;
      }
    }
  });
  std::map<std::string, int> served;
  for (const auto& answer : GenerateAll(stub(), Requests(200, 40))) {
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (answer.ok()) ++served[answer->samples(0).usage().worker_id()];
  }
  done = true;
  prober.join();
  EXPECT_GT(probes, 3);
  ASSERT_EQ(served.size(), 2u);
  for (const auto& [worker, count] : served) EXPECT_GE(count, 80) << worker;
  // The load that routing looks at is what runs: nothing.
  EXPECT_TRUE(ClusterHarness::WaitUntil([&] {
    int64_t running = 0;
    const v1::GetServerInfoResponse info = Info();
    for (const v1::WorkerInfo& worker : info.workers()) running += worker.running_sequences();
    return running == 0 && cluster_.RouterMetric("lockstep_router_sequences") == 0;
  }));
}

TEST_F(MembershipTest, AffineWorkerThatDiedIsNotChosenUntilItIsBack) {
  std::string key = "key-0";
  for (int i = 1; WorkerOf(key) != "worker-0"; ++i) {
    ASSERT_LT(i, 100);
    key = absl::StrCat("key-", i);
  }
  EXPECT_EQ(WorkerOf(key), "worker-0");
  cluster_.StopWorker(0);
  ASSERT_TRUE(WaitForRouter(1));
  const double resumptions = cluster_.RouterMetric("lockstep_router_resumptions_total");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(WorkerOf(key), "worker-1");
  EXPECT_EQ(cluster_.RouterMetric("lockstep_router_resumptions_total"), resumptions);
  ASSERT_TRUE(cluster_.StartWorker(0).ok());
  ASSERT_TRUE(WaitForRouter(2));
  EXPECT_TRUE(ClusterHarness::WaitUntil([&] { return WorkerOf(key) == "worker-0"; }));
}

TEST_F(MembershipTest, SchedulerAndRouterRestartTogetherWithoutLosingAWorkerOrABit) {
  const auto requests = Requests(24, 200);
  const auto expected = GenerateQuietly(stub(), requests);
  const auto incarnations = Incarnations();
  ASSERT_EQ(incarnations.size(), 2u);
  GenerateCalls calls(stub());
  for (const v1::GenerateRequest& request : requests) calls.Start(request);
  WaitUntilBothRun();
  cluster_.StopScheduler();
  cluster_.StopRouter();
  ASSERT_TRUE(cluster_.StartScheduler().ok());
  ASSERT_TRUE(cluster_.StartRouter().ok());
  EXPECT_LT(calls.finished_count(), requests.size()) << "the restart came too late";
  const auto answers = calls.Wait();
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << i << ": " << answers[i].status();
    ASSERT_TRUE(expected[i].ok()) << expected[i].status();
    EXPECT_EQ(Bits(*answers[i]), Bits(*expected[i])) << i;
  }
  // The same lives of the same workers: each registered again and none lost its lease.
  EXPECT_EQ(Incarnations(), incarnations);
  EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_registrations_total"), 2);
  EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_leases_ended_total"), 0);
}

TEST_F(MembershipTest, DrainOfAWorkerUnderLoadFailsNoRequest) {
  const auto requests = Requests(40, 150);
  const auto expected = GenerateQuietly(stub(), requests);
  std::string address;
  const v1::GetServerInfoResponse info = Info();
  for (const v1::WorkerInfo& worker : info.workers()) {
    if (worker.worker_id() == "worker-0") address = worker.address();
  }
  const auto channel = rpc::MakeChannel(address);
  const auto is = [&](const char* name) {
    return rpc::CheckHealth(channel, name, absl::Seconds(5)).value_or(false);
  };
  EXPECT_TRUE(is("ready"));
  GenerateCalls calls(stub());
  for (const v1::GenerateRequest& request : requests) calls.Start(request);
  WaitUntilBothRun();
  std::thread drain([&] { cluster_.worker(0)->Drain(absl::Now() + absl::Seconds(60)); });
  // Not ready comes first, while it still works for what it has.
  EXPECT_TRUE(ClusterHarness::WaitUntil([&] { return !is("ready"); }));
  EXPECT_TRUE(is("live"));
  EXPECT_GT(cluster_.WorkerMetric(0, "lockstep_worker_sequences_running"), 0);
  const auto answers = calls.Wait();
  drain.join();
  cluster_.StopWorker(0);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << i << ": " << answers[i].status();
    ASSERT_TRUE(expected[i].ok()) << expected[i].status();
    EXPECT_EQ(Bits(*answers[i]), Bits(*expected[i])) << i;
  }
  EXPECT_TRUE(cluster_.WaitForWorkers(1));
}

// A load balancer must not send requests where each would be refused, nor take all gateways out
// because of what one of their peers does.
TEST(GatewayReadinessTest, ComesWithTheFirstWorkerAndStaysWithoutAny) {
  ClusterHarness cluster({.workers = 1, .lease_seconds = 0.5});
  ASSERT_TRUE(cluster.StartScheduler().ok());
  ASSERT_TRUE(cluster.StartRouter().ok());
  ASSERT_TRUE(cluster.StartGateway().ok());
  const auto channel = rpc::MakeChannel(cluster.gateway_address());
  const auto is = [&](const char* name) {
    return rpc::CheckHealth(channel, name, absl::Seconds(5)).value_or(false);
  };
  // Requests that come nevertheless are told to come again.
  const absl::Status refused =
      CallNow(cluster.stub(), &testing::RolloutStub::GetServerInfo, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(is("live"));
  EXPECT_TRUE(is("started"));
  EXPECT_FALSE(is("ready"));
  EXPECT_FALSE(is(""));

  ASSERT_TRUE(cluster.StartWorker(0).ok());
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return is("ready"); }));
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(1);
  request.mutable_stop()->set_max_new_tokens(1);
  EXPECT_TRUE(CallNow(cluster.stub(), &testing::RolloutStub::Generate, request).ok());

  cluster.StopWorker(0);
  ASSERT_TRUE(cluster.WaitForWorkers(0));
  EXPECT_TRUE(is("ready"));
  cluster.StopScheduler();
  cluster.StopRouter();
  ASSERT_TRUE(ClusterHarness::WaitUntil(
      [&] { return cluster.GatewayMetric("lockstep_gateway_routers_connected") == 0; }));
  EXPECT_TRUE(is("ready"));
}

}  // namespace
}  // namespace lockstep
