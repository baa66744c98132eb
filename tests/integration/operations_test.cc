// Abort, pause and clients that go away, over the whole cluster: nothing hangs, nothing is lost,
// nothing stays behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "services/client/arrays.h"
#include "services/client/rollout_client.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;
using testing::RolloutStub;
using testing::SharedClusterTest;

v1::GenerateRequest Request(uint64_t seed, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text(absl::StrCat("Tell me a story about ", seed, ":"));
  request.set_seed(seed);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

class OperationsTest : public SharedClusterTest<OperationsTest> {
 public:
  static ClusterHarness::Options ClusterOptions() {
    return {.model = "deploy/demo-model", .orphan_grace_seconds = 0.2};
  }

 protected:
  static double OnWorkers(const std::string& metric) {
    return cluster_->WorkerMetric(0, metric) + cluster_->WorkerMetric(1, metric);
  }
  static double GeneratedTokens() {
    return cluster_->GatewayMetric("lockstep_gateway_generated_tokens_total");
  }
  static bool WaitForTokens(double count) {
    return ClusterHarness::WaitUntil([&] { return GeneratedTokens() > count; });
  }
  // No permit, ticket, slot or page is held by anything.
  static void ExpectIdle() {
    EXPECT_TRUE(ClusterHarness::WaitUntil([] {
      return cluster_->GatewayMetric("lockstep_gateway_samples_open") == 0 &&
             cluster_->GatewayMetric("lockstep_gateway_stream_slots_used") == 0 &&
             cluster_->GatewayMetric("lockstep_gateway_streams_waiting") == 0 &&
             cluster_->RouterMetric("lockstep_router_sequences") == 0 &&
             cluster_->SchedulerMetric("lockstep_scheduler_running_sequences") == 0 &&
             cluster_->SchedulerMetric("lockstep_scheduler_queued_sequences") == 0 &&
             cluster_->SchedulerMetric("lockstep_scheduler_kv_blocks_reserved") == 0 &&
             OnWorkers("lockstep_worker_sequences_running") == 0 &&
             OnWorkers("lockstep_worker_sequences_waiting") == 0 &&
             OnWorkers("lockstep_worker_kv_blocks_used") == 0;
    }));
  }
  static v1::GetStateResponse State() {
    const auto state = CallNow(stub(), &RolloutStub::GetState, {});
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? *state : v1::GetStateResponse();
  }
  static absl::StatusOr<v1::PauseResponse> Pause(v1::PauseMode mode) {
    v1::PauseRequest request;
    request.set_mode(mode);
    return CallNow(stub(), &RolloutStub::Pause, request);
  }
  static void Resume() {
    const auto resumed = CallNow(stub(), &RolloutStub::Resume, {});
    ASSERT_TRUE(resumed.ok()) << resumed.status();
  }
};

TEST_F(OperationsTest, AbortFreesSlotAndKvWithinAStep) {
  v1::GenerateRequest request = Request(1, 3000);
  request.set_request_id("frees-its-kv");
  request.set_n(2);
  GenerateCalls calls(stub());
  calls.Start(request);
  ASSERT_TRUE(WaitForTokens(GeneratedTokens() + 20));
  EXPECT_GT(OnWorkers("lockstep_worker_kv_blocks_used"), 0);
  v1::AbortRequest abort;
  abort.add_request_ids("frees-its-kv");
  const auto aborted = CallNow(stub(), &RolloutStub::Abort, abort);
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(aborted->aborted_sequences(), 2);
  // Nothing else runs, so a step after the answer would be one of the aborted sequences.
  const double steps = OnWorkers("lockstep_worker_steps_total");
  ExpectIdle();
  EXPECT_LE(OnWorkers("lockstep_worker_steps_total"), steps + 1);
  const auto answer = calls.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  for (const v1::Sample& sample : answer->samples()) {
    EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
    EXPECT_GT(sample.token_ids().size(), 0u);
    EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
  }
}

// It makes calls again that end as if their gateway had gone; an abort must not look so.
TEST_F(OperationsTest, TheClientLibraryAsksOnceForWhatSomebodyAborts) {
  const auto calls_counted = [] {
    return cluster_->GatewayMetric("lockstep_gateway_requests_total");
  };
  client::RolloutClient client({.target = cluster_->gateway_address()});
  for (const bool all : {false, true}) {
    v1::GenerateRequest request = Request(2, 3000);
    request.set_request_id(all ? "aborted-with-all" : "aborted-by-id");
    const double before = calls_counted();
    const double tokens = GeneratedTokens();
    absl::StatusOr<v1::GenerateResponse> answer = absl::UnknownError("not answered");
    {
      const std::jthread caller([&] { answer = client.Generate(request); });
      ASSERT_TRUE(WaitForTokens(tokens + 20));
      v1::AbortRequest abort;
      if (all) {
        abort.set_all(true);
      } else {
        abort.add_request_ids(request.request_id());
      }
      const auto aborted = CallNow(stub(), &RolloutStub::Abort, abort);
      ASSERT_TRUE(aborted.ok()) << aborted.status();
    }
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_ABORT);
    ExpectIdle();
    EXPECT_TRUE(ClusterHarness::WaitUntil([&] { return calls_counted() > before; }));
    EXPECT_EQ(calls_counted(), before + 1);
  }
}

TEST_F(OperationsTest, SubmitsThatRaceAnAbortOfAllEachEndOnce) {
  GenerateCalls calls(stub());
  constexpr int kRequests = 256;
  base::Mutex mutex;
  base::CondVar changed;
  bool answered = false;
  v1::AbortRequest all;
  all.set_all(true);
  rpc::CallHandle abort;
  for (int i = 0; i < kRequests; ++i) {
    calls.Start(Request(i, 100));
    if (i != kRequests / 2) continue;
    // Under way while the second half is submitted.
    abort = rpc::CallUnary(stub()->async(), &RolloutStub::async_interface::Abort, all,
                           {.deadline = absl::Now() + absl::Seconds(60)},
                           [&](absl::StatusOr<v1::AbortResponse> response) {
                             EXPECT_TRUE(response.ok()) << response.status();
                             base::MutexLock lock(&mutex);
                             answered = true;
                             changed.NotifyAll();
                           });
  }
  int aborted = 0;
  for (const auto& answer : calls.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    const v1::Sample& sample = answer->samples(0);
    if (sample.finish_reason() == v1::FINISH_REASON_ABORT) {
      ++aborted;
      EXPECT_LE(sample.token_ids().size(), 400u);
    } else {
      EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_LENGTH);
      EXPECT_EQ(sample.token_ids().size(), 400u);
    }
  }
  EXPECT_GE(aborted, 1);
  base::MutexLock lock(&mutex);
  while (!answered) changed.Wait(&mutex);
  ExpectIdle();
}

TEST_F(OperationsTest, NothingIsAdmittedBetweenAPauseAndItsResume) {
  GenerateCalls calls(stub());
  for (int i = 0; i < 128; ++i) calls.Start(Request(i, 60));
  const auto paused = Pause(v1::PAUSE_MODE_ABORT);
  ASSERT_TRUE(paused.ok()) << paused.status();
  const double admitted = cluster_->SchedulerMetric("lockstep_scheduler_admissions_total");
  for (int i = 128; i < 256; ++i) calls.Start(Request(i, 60));
  ASSERT_TRUE(ClusterHarness::WaitUntil([] { return State().queued_sequences() >= 128; }));
  const v1::GetStateResponse state = State();
  EXPECT_TRUE(state.paused());
  EXPECT_EQ(state.pause_mode(), v1::PAUSE_MODE_ABORT);
  EXPECT_EQ(state.epoch(), paused->epoch());
  EXPECT_EQ(state.running_sequences(), 0);
  EXPECT_EQ(state.weight_version(), 1);
  EXPECT_EQ(OnWorkers("lockstep_worker_sequences_running"), 0);
  EXPECT_EQ(cluster_->SchedulerMetric("lockstep_scheduler_admissions_total"), admitted);
  Resume();
  int whole = 0;
  for (const auto& answer : calls.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    const v1::Sample& sample = answer->samples(0);
    whole += sample.finish_reason() == v1::FINISH_REASON_LENGTH;
    EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
  }
  EXPECT_GE(whole, 128);
  ExpectIdle();
}

TEST_F(OperationsTest, PauseInAbortModeEndsWhatRunsAndWhatWaitsAndBothGoOnLater) {
  // More than both workers' KV takes, so that some wait at the scheduler.
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 96; ++i) {
    requests.push_back(Request(100 + i, 3000));
    requests.back().set_disable_prefix_cache(true);
  }
  GenerateCalls calls(stub());
  for (const v1::GenerateRequest& request : requests) calls.Start(request);
  ASSERT_TRUE(ClusterHarness::WaitUntil([] {
    const v1::GetStateResponse state = State();
    return state.running_sequences() > 0 && state.queued_sequences() > 0;
  }));
  ASSERT_TRUE(WaitForTokens(GeneratedTokens() + 50));
  const auto paused = Pause(v1::PAUSE_MODE_ABORT);
  ASSERT_TRUE(paused.ok()) << paused.status();
  // All of them end although nothing is resumed.
  v1::GenerateRequest resumed;
  bool any_waited = false;
  const auto answers = calls.Wait();
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << answers[i].status();
    const v1::Sample& sample = answers[i]->samples(0);
    EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
    EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
    any_waited = any_waited || sample.token_ids().empty();
    if (sample.token_ids().empty() || resumed.has_prompt_text()) continue;
    resumed = requests[i];
    for (const uint32_t id : client::ReadIds(sample.token_ids())) resumed.add_generated_ids(id);
  }
  EXPECT_TRUE(any_waited);
  ASSERT_TRUE(resumed.has_prompt_text()) << "none had a token";
  Resume();
  ExpectIdle();
  // A partial goes on to the end that the uninterrupted one would have had.
  const int64_t tokens = resumed.generated_ids_size() + 20;
  resumed.mutable_stop()->set_max_new_tokens(tokens);
  v1::GenerateRequest whole = resumed;
  whole.clear_generated_ids();
  const auto both = GenerateAll(stub(), {resumed, whole});
  ASSERT_TRUE(both[0].ok() && both[1].ok());
  const std::string& ids = both[1]->samples(0).token_ids();
  const size_t given = 4 * static_cast<size_t>(resumed.generated_ids_size());
  EXPECT_EQ(both[0]->samples(0).token_ids().substr(both[0]->samples(0).token_ids().size() -
                                                   (ids.size() - given)),
            ids.substr(given));
}

TEST_F(OperationsTest, PauseInWaitModeReturnsAfterTheDrain) {
  GenerateCalls calls(stub());
  for (int i = 0; i < 16; ++i) calls.Start(Request(i, 150));
  ASSERT_TRUE(WaitForTokens(GeneratedTokens() + 16));
  const auto paused = Pause(v1::PAUSE_MODE_WAIT);
  ASSERT_TRUE(paused.ok()) << paused.status();
  EXPECT_EQ(State().running_sequences(), 0);
  EXPECT_EQ(OnWorkers("lockstep_worker_sequences_running"), 0);
  for (const auto& answer : calls.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  }
  Resume();
  EXPECT_FALSE(State().paused());
}

TEST_F(OperationsTest, PauseInKeepModeHoldsSequencesThatGoOnWithTheSameBits) {
  const auto expected = testing::GenerateQuietly(stub(), {Request(5, 2000)})[0];
  ASSERT_TRUE(expected.ok()) << expected.status();
  GenerateCalls calls(stub());
  const double before = GeneratedTokens();
  calls.Start(Request(5, 2000));
  ASSERT_TRUE(WaitForTokens(before + 10));
  const auto paused = Pause(v1::PAUSE_MODE_KEEP);
  ASSERT_TRUE(paused.ok()) << paused.status();
  EXPECT_EQ(State().running_sequences(), 1);
  const double steps = OnWorkers("lockstep_worker_steps_total");
  EXPECT_GT(OnWorkers("lockstep_worker_kv_blocks_used"), 0);
  EXPECT_EQ(calls.finished_count(), 0u);
  EXPECT_EQ(OnWorkers("lockstep_worker_steps_total"), steps);
  Resume();
  const auto answer = calls.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(Bits(*answer), Bits(*expected));
}

TEST_F(OperationsTest, AThousandClientsThatVanishLeaveNothingBehind) {
  // Unary calls, streams of one prompt in the middle of their answer, streams of many prompts.
  GenerateCalls calls(stub());
  for (int i = 0; i < 400; ++i) {
    calls.Start(Request(i, 2000));
    if (i >= 20) calls.Cancel(i - 20);
  }
  for (int i = 380; i < 400; ++i) calls.Cancel(i);
  for (const auto& answer : calls.Wait()) EXPECT_FALSE(answer.ok());

  for (int i = 0; i < 400; ++i) {
    grpc::ClientContext context;
    v1::GenerateRequest request = Request(i, 2000);
    if (i % 2 == 0) request.set_request_id(absl::StrCat("vanishing-", i));
    auto stream = stub()->GenerateStream(&context, request);
    v1::GenerateDelta delta;
    for (int read = 0; read < 1 + i % 3; ++read) ASSERT_TRUE(stream->Read(&delta));
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
  }

  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    auto stream = stub()->GenerateMany(&context);
    for (int item = 0; item < 4; ++item) {
      v1::GenerateManyRequest many;
      *many.mutable_generate() = Request(item, item == 0 ? 1 : 2000);
      many.mutable_generate()->set_request_id(absl::StrCat("vanishing-", i, "-", item));
      ASSERT_TRUE(stream->Write(many));
    }
    v1::GenerateManyResponse response;
    if (i % 2 == 0) {
      ASSERT_TRUE(stream->Read(&response));
    }
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
  }
  ExpectIdle();
  EXPECT_TRUE(GenerateAll(stub(), {Request(1, 5)})[0].ok());
}

TEST_F(OperationsTest, ClientThatDoesNotReadStopsItselfOnly) {
  // Left alone, the client's transport would widen its window to megabytes and read for it.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto slow_stub = v1::RolloutService::NewStub(grpc::CreateCustomChannel(
      cluster_->gateway_address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::GenerateRequest slow = Request(1, 3500);
  slow.mutable_logprobs()->set_top_count(64);  // Some 600 bytes a token.
  const double before = GeneratedTokens();
  auto stream = slow_stub->GenerateStream(&context, slow);
  // It has its window of tokens, and what the transport has taken from it. On a busy machine it may
  // stand still for a while before.
  constexpr double kWindowTokens = 256;
  ASSERT_TRUE(WaitForTokens(before + kWindowTokens - 1));
  // Others run in rounds, until the slow one gets no token during a whole round.
  std::vector<v1::GenerateRequest> others;
  for (int i = 0; i < 16; ++i) others.push_back(Request(10 + i, 60));
  double held = 0, previously = -1;
  for (int round = 1; held != previously; ++round) {
    for (const auto& answer : GenerateAll(stub(), others)) ASSERT_TRUE(answer.ok());
    previously = std::exchange(held, GeneratedTokens() - before - 16 * 60 * round);
    ASSERT_LT(held, 3500) << "nothing holds it back";
  }
  EXPECT_GE(held, kWindowTokens);
  EXPECT_LT(held, 1500);
  // The scheduler hears of the ends of the others a little later than their clients.
  EXPECT_TRUE(ClusterHarness::WaitUntil([] { return State().running_sequences() == 1; }));
  // It loses nothing by waiting.
  std::string ids;
  v1::GenerateDelta delta;
  while (stream->Read(&delta)) {
    ids += delta.token_ids();
    if (!delta.has_finished()) continue;
    EXPECT_EQ(delta.finished().finish_reason(), v1::FINISH_REASON_LENGTH)
        << delta.finished().error().message();
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(ids.size(), 4 * 3500u);
  ExpectIdle();
}

}  // namespace
}  // namespace lockstep
