// What a cluster goes through while it serves: lost workers, routers and schedulers, aborts,
// pauses, clients that vanish. Every answer must equal, bit for bit, the one of a quiet run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "tests/faults/altering_executor.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/hanging_executor.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::ClusterHarness;
using testing::GenerateCalls;
using testing::GenerateQuietly;

constexpr char kDemoModel[] = "deploy/demo-model";

v1::GenerateRequest Request(int i, int tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text(absl::StrCat(11 + i, "+34*", 2 + i % 7, "="));
  request.set_seed(1000 + i);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

std::vector<v1::GenerateRequest> Requests(int count, int tokens) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(Request(i, tokens));
  return requests;
}

class FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
  }

  // Runs `requests` all at once with `fault` in their middle, and compares with their quiet run.
  void ExpectSameBitsThrough(const std::vector<v1::GenerateRequest>& requests,
                             absl::FunctionRef<void()> fault) {
    const auto expected = QuietRun(requests);
    const double quiet = GeneratedTokens();
    GenerateCalls calls(cluster_.stub());
    for (const v1::GenerateRequest& request : requests) calls.Start(request);
    const double wanted = quiet + 0.2 * requests.size() * TokensEach(requests[0]);
    ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return GeneratedTokens() > wanted; }));
    ASSERT_LT(calls.finished_count(), requests.size()) << "the fault would come too late";
    fault();
    const auto answers = calls.Wait();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(expected[i].ok()) << expected[i].status();
      ASSERT_TRUE(answers[i].ok()) << i << ": " << answers[i].status();
      EXPECT_EQ(Bits(*answers[i]), Bits(*expected[i])) << i;
    }
  }

  // One request at a time, each in the first cluster that asks for it: another of the same model
  // must give the same bits, so that no test has to wait for its own.
  std::vector<absl::StatusOr<v1::GenerateResponse>> QuietRun(
      const std::vector<v1::GenerateRequest>& requests) {
    static std::map<std::string, absl::StatusOr<v1::GenerateResponse>> runs;
    std::vector<absl::StatusOr<v1::GenerateResponse>> answers;
    for (const v1::GenerateRequest& request : requests) {
      auto& run = runs[absl::StrCat(segments_, " segments: ", request.SerializeAsString())];
      if (!run.ok()) run = GenerateQuietly(cluster_.stub(), {request})[0];
      answers.push_back(run);
    }
    return answers;
  }

  static double TokensEach(const v1::GenerateRequest& request) {
    return static_cast<double>(request.stop().max_new_tokens());
  }
  double GeneratedTokens() const {
    return cluster_.GatewayMetric("lockstep_gateway_generated_tokens_total");
  }
  // Nothing runs, nothing is reserved.
  void ExpectEmpty() {
    EXPECT_TRUE(ClusterHarness::WaitUntil([&] {
      return cluster_.GatewayMetric("lockstep_gateway_samples_open") == 0 &&
             cluster_.WorkerMetric(0, "lockstep_worker_sequences_running") == 0 &&
             cluster_.WorkerMetric(1, "lockstep_worker_sequences_running") == 0 &&
             cluster_.WorkerMetric(0, "lockstep_worker_kv_blocks_used") == 0 &&
             cluster_.WorkerMetric(1, "lockstep_worker_kv_blocks_used") == 0;
    }));
  }

  FaultsTest() : FaultsTest({.model = kDemoModel}) {}
  explicit FaultsTest(ClusterHarness::Options options)
      : segments_(options.reduction_segments), cluster_(std::move(options)) {}

  const int64_t segments_;
  ClusterHarness cluster_;
};

// A device that fails for good once it is told to.
class BreakableExecutor final : public faults::AlteringExecutor {
 public:
  BreakableExecutor(std::unique_ptr<worker::StepExecutor> inner, const std::atomic<int>* broken,
                    int number, absl::Status how)
      : AlteringExecutor(std::move(inner)),
        broken_(broken),
        number_(number),
        how_(std::move(how)) {}

  absl::Status Collect(std::vector<worker::StepSequenceResult>* results) override {
    if (broken_->load() == number_) return how_;
    return AlteringExecutor::Collect(results);
  }

 private:
  const std::atomic<int>* const broken_;
  const int number_;
  const absl::Status how_;
};

class LostDeviceTest : public FaultsTest {
 protected:
  explicit LostDeviceTest(absl::Status how = absl::UnavailableError("the device is lost"),
                          double lease_seconds = 2)
      : FaultsTest({.model = kDemoModel,
                    .lease_seconds = lease_seconds,
                    .worker_hooks = {.wrap_executor = [this, how](auto inner) {
                      return std::make_unique<BreakableExecutor>(std::move(inner), &broken_,
                                                                 made_++, how);
                    }}}) {}

  bool Ready(int worker) {
    const auto channel =
        rpc::MakeChannel(absl::StrCat("127.0.0.1:", cluster_.worker(worker)->port()));
    const auto ready = rpc::CheckHealth(channel, "ready", absl::Seconds(5));
    return ready.ok() && *ready;
  }

  std::atomic<int> broken_ = -1;
  int made_ = 0;
};

TEST_F(LostDeviceTest, MakesItsWorkerUnreadyAndItsSequencesGoOnElsewhere) {
  ASSERT_TRUE(Ready(0) && Ready(1));
  ExpectSameBitsThrough(Requests(32, 300), [&] { broken_ = 0; });
  EXPECT_GE(cluster_.RouterMetric("lockstep_router_resumptions_total"), 1);
  EXPECT_FALSE(Ready(0));
  EXPECT_TRUE(Ready(1));
  // What ends the process.
  EXPECT_EQ(cluster_.worker(0)->health().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(cluster_.worker(1)->health().ok());
}

struct Fault {
  const char* name;
  absl::Status status;
  const char* reason;  // Of the lease's end.
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// Leases are far longer than the test: what runs is moved by what its worker says.
class FarewellTest : public LostDeviceTest, public ::testing::WithParamInterface<Fault> {
 protected:
  FarewellTest() : LostDeviceTest(GetParam().status, /*lease_seconds=*/60) {}

  double Ended(const std::string& reason) const {
    return cluster_.SchedulerMetric(
        absl::StrCat("lockstep_scheduler_leases_ended_total{reason=\"", reason, "\"}"));
  }
};

TEST_P(FarewellTest, AWorkerThatFailsGivesItsLeaseBackAndSaysWhy) {
  ExpectSameBitsThrough(Requests(8, 100), [&] {
    broken_ = 0;
    ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return !cluster_.worker(0)->health().ok(); }));
    EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_leases_ended_total"), 0);
    cluster_.worker(0)->LeaveFailed();
  });
  EXPECT_GE(cluster_.RouterMetric("lockstep_router_resumptions_total"), 1);
  EXPECT_EQ(Ended(GetParam().reason), 1);
  EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_leases_ended_total"), 1);
  EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_workers"), 1);
  EXPECT_TRUE(testing::GenerateAll(cluster_.stub(), Requests(1, 20))[0].ok());
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FarewellTest,
    ::testing::Values(Fault{"Lost", absl::UnavailableError("the device is lost"), "failed"},
                      Fault{"WrongBits", absl::DataLossError("audit: 1 row"), "wrong_bits"}),
    [](const auto& info) { return std::string(info.param.name); });

// One rank of a worker that stands still in an op, once it is told to, until it may go on.
class StallingKernels final : public faults::ForwardingKernelSet {
 public:
  StallingKernels(std::unique_ptr<kernels::KernelSet> inner, const std::atomic<bool>* stalled,
                  absl::Notification* go_on)
      : ForwardingKernelSet(std::move(inner)), stalled_(stalled), go_on_(go_on) {}

  void SwiGlu(const kernels::SwiGluArgs& args) override {
    if (stalled_->load()) go_on_->WaitForNotification();
    ForwardingKernelSet::SwiGlu(args);
  }

 private:
  const std::atomic<bool>* const stalled_;
  absl::Notification* const go_on_;
};

class StalledRankTest : public FaultsTest {
 protected:
  StalledRankTest()
      : FaultsTest(
            {.model = kDemoModel,
             .reduction_segments = 2,
             .tensor_parallel = 2,
             .worker_hooks = {.wrap_kernels = [this](std::unique_ptr<kernels::KernelSet> inner)
                                  -> std::unique_ptr<kernels::KernelSet> {
                                if (made_++ > 0) return inner;
                                return std::make_unique<StallingKernels>(std::move(inner),
                                                                         &stalled_, &go_on_);
                              },
                              .rank_patience = absl::Milliseconds(500)}}) {}

  std::atomic<int> made_ = 0;  // The first is a rank of worker 0.
  std::atomic<bool> stalled_ = false;
  absl::Notification go_on_;
};

// The engine's thread waits for the stuck rank all the time.
TEST_F(StalledRankTest, ItsWorkerLeavesAndItsSequencesGoOnElsewhere) {
  ExpectSameBitsThrough(Requests(16, 300), [&] { stalled_ = true; });
  EXPECT_GE(cluster_.RouterMetric("lockstep_router_resumptions_total"), 1);
  EXPECT_EQ(cluster_.worker(0)->health().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(cluster_.worker(1)->health().ok());
  EXPECT_TRUE(cluster_.WaitForWorkers(1));
  go_on_.Notify();
}

// A device that hangs, of worker 0, in a cluster that gives up an engine after `patience`.
class HungDeviceTest : public FaultsTest {
 protected:
  explicit HungDeviceTest(absl::Duration patience = absl::Seconds(3))
      : FaultsTest({.model = kDemoModel,
                    .worker_hooks = {.wrap_executor =
                                         faults::WrapExecutorIn<testing::HangingExecutor>(&hangs_),
                                     .hang_patience = patience},
                    .hooked_worker = 0}) {}
  // The engine's thread has to come back before its worker can be destroyed.
  void TearDown() override { GoOn(); }

  void GoOn() {
    hangs_ = false;
    hangs_.notify_all();
  }
  absl::StatusOr<bool> Health(const std::string& name) {
    return rpc::CheckHealth(rpc::MakeChannel(cluster_.worker_address(0)), name, absl::Seconds(5));
  }
  absl::StatusCode EngineHealth() { return cluster_.worker(0)->health().code(); }

  std::atomic<bool> hangs_ = false;
};

TEST_F(HungDeviceTest, CostsNoBitAndEndsItsWorker) {
  ExpectSameBitsThrough(Requests(16, 300), [&] { hangs_ = true; });
  EXPECT_GE(cluster_.RouterMetric("lockstep_router_resumptions_total"), 1);
  EXPECT_TRUE(cluster_.WaitForWorkers(1));
  // What ends the process.
  EXPECT_TRUE(ClusterHarness::WaitUntil(
      [&] { return EngineHealth() == absl::StatusCode::kDeadlineExceeded; }));
  EXPECT_FALSE(Health("live").value_or(true));
  EXPECT_TRUE(cluster_.worker(1)->health().ok());
}

class LongHungDeviceTest : public HungDeviceTest {
 protected:
  LongHungDeviceTest() : HungDeviceTest(absl::Minutes(10)) {}
};

TEST_F(LongHungDeviceTest, ADrainEndsByItsDeadlineAndSaysWhy) {
  ExpectSameBitsThrough(Requests(16, 300), [&] {
    hangs_ = true;
    cluster_.worker(0)->Drain(absl::Now() + absl::Seconds(1));
    EXPECT_EQ(EngineHealth(), absl::StatusCode::kDeadlineExceeded);
  });
  EXPECT_GE(cluster_.RouterMetric("lockstep_router_resumptions_total"), 1);
}

TEST_F(LongHungDeviceTest, OneThatComesBackJoinsAsAnotherLifeWithoutItsOldSequences) {
  ExpectSameBitsThrough(Requests(16, 300), [&] {
    hangs_ = true;
    EXPECT_TRUE(cluster_.WaitForWorkers(1));
  });
  // Its next heartbeat tells it.
  EXPECT_TRUE(ClusterHarness::WaitUntil([&] { return !Health("ready").value_or(true); }));
  GoOn();
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_TRUE(Health("ready").value_or(false));
  EXPECT_TRUE(Health("live").value_or(false));
  EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_plan_violations_total"), 0);
  ExpectEmpty();
}

TEST_F(FaultsTest, LostWorkerCostsNoBit) {
  ExpectSameBitsThrough(Requests(32, 300), [&] { cluster_.StopWorker(0); });
  EXPECT_GE(cluster_.RouterMetric("lockstep_router_resumptions_total"), 1);
  EXPECT_EQ(cluster_.GatewayMetric("lockstep_gateway_bit_mismatches_total"), 0);
  ASSERT_TRUE(cluster_.StartWorker(0).ok());
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  ExpectEmpty();
}

TEST_F(FaultsTest, RestartedSchedulerCostsNoBitAndNoWorker) {
  ExpectSameBitsThrough(Requests(32, 300), [&] {
    cluster_.StopScheduler();
    const absl::Status status = cluster_.StartScheduler();
    ASSERT_TRUE(status.ok()) << status;
  });
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_EQ(cluster_.SchedulerMetric("lockstep_scheduler_plan_violations_total"), 0);
  ExpectEmpty();
}

TEST_F(FaultsTest, RestartedRouterCostsNoBit) {
  ExpectSameBitsThrough(Requests(32, 300), [&] {
    cluster_.StopRouter();
    const absl::Status status = cluster_.StartRouter();
    ASSERT_TRUE(status.ok()) << status;
  });
  EXPECT_GE(cluster_.GatewayMetric("lockstep_gateway_resubmissions_total"), 1);
  ExpectEmpty();
}

TEST_F(FaultsTest, AbortOfAllEndsEachRequestOnce) {
  GenerateCalls calls(cluster_.stub());
  for (int i = 0; i < 256; ++i) {
    calls.Start(Request(i, 100));
    if (i != 128) continue;
    grpc::ClientContext context;
    v1::AbortRequest abort;
    abort.set_all(true);
    v1::AbortResponse response;
    const grpc::Status status = cluster_.stub()->Abort(&context, abort, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(response.silent_workers().empty());
  }
  int aborted = 0;
  for (const auto& answer : calls.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    const v1::Sample& sample = answer->samples(0);
    aborted += sample.finish_reason() == v1::FINISH_REASON_ABORT;
    EXPECT_THAT(sample.finish_reason(),
                ::testing::AnyOf(v1::FINISH_REASON_ABORT, v1::FINISH_REASON_LENGTH));
    EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
  }
  EXPECT_GE(aborted, 1);
  ExpectEmpty();
}

TEST_F(FaultsTest, AbortByIdKeepsThePartialAnswer) {
  v1::GenerateRequest request = Request(1, 4000);
  request.set_request_id("to-abort");
  GenerateCalls calls(cluster_.stub());
  calls.Start(request);
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return GeneratedTokens() > 10; }));
  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.add_request_ids("to-abort");
  abort.add_request_ids("unheard-of");
  v1::AbortResponse response;
  ASSERT_TRUE(cluster_.stub()->Abort(&context, abort, &response).ok());
  EXPECT_EQ(response.aborted_sequences(), 1);
  EXPECT_EQ(response.unknown_requests(), 1);
  const auto answer = calls.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_GE(answer->samples(0).token_ids().size(), 4u);
  ExpectEmpty();
}

TEST_F(FaultsTest, PauseWaitsForTheDrainAndAdmitsNothing) {
  GenerateCalls running(cluster_.stub());
  for (int i = 0; i < 8; ++i) running.Start(Request(i, 200));
  // What has not been admitted by then waits for the end of the pause.
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
    return static_cast<double>(running.finished_count()) +
               cluster_.WorkerMetric(0, "lockstep_worker_sequences_running") +
               cluster_.WorkerMetric(1, "lockstep_worker_sequences_running") ==
           8;
  }));
  grpc::ClientContext pause_context;
  v1::PauseResponse paused;
  ASSERT_TRUE(cluster_.stub()->Pause(&pause_context, {}, &paused).ok());
  for (const auto& answer : running.Wait()) EXPECT_TRUE(answer.ok());
  GenerateCalls waiting(cluster_.stub());
  waiting.Start(Request(9, 8));
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
    grpc::ClientContext context;
    v1::GetStateResponse state;
    return cluster_.stub()->GetState(&context, {}, &state).ok() && state.paused() &&
           state.queued_sequences() == 1;
  }));
  EXPECT_EQ(waiting.finished_count(), 0u);
  grpc::ClientContext resume_context;
  v1::ResumeResponse resumed;
  ASSERT_TRUE(cluster_.stub()->Resume(&resume_context, {}, &resumed).ok());
  EXPECT_GT(resumed.epoch(), paused.epoch());
  EXPECT_TRUE(waiting.Wait()[0].ok());
}

TEST_F(FaultsTest, ClientsThatVanishLeaveNothingBehind) {
  GenerateCalls calls(cluster_.stub());
  for (int i = 0; i < 300; ++i) {
    calls.Start(Request(i, 2000));
    if (i >= 30) calls.Cancel(i - 30);
  }
  for (int i = 270; i < 300; ++i) calls.Cancel(i);
  for (const auto& answer : calls.Wait()) EXPECT_FALSE(answer.ok());
  ExpectEmpty();
}

}  // namespace
}  // namespace lockstep
