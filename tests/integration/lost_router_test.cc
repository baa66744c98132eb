// Abort and pause while what they concern has lost its router: they end it all the same, count it,
// and nothing of it comes back with the next router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;
using testing::RolloutStub;

v1::GenerateRequest Request(const std::string& id, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.set_prompt_text(absl::StrCat("Tell me a story about ", id, ":"));
  request.set_seed(7);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// A GenerateStream that nobody reads before its end is wanted: meanwhile it runs for as long as its
// credit lasts.
class Stream {
 public:
  Stream(RolloutStub* stub, const v1::GenerateRequest& request)
      : stream_(stub->GenerateStream(&context_, request)) {}
  v1::FinishReason ReadToEnd() {
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
    size_t bytes = 0;
    v1::GenerateDelta delta;
    while (stream_->Read(&delta)) {
      bytes += delta.token_ids().size();
      if (delta.has_finished()) reason = delta.finished().finish_reason();
    }
    EXPECT_TRUE(stream_->Finish().ok());
    EXPECT_GT(bytes, 0u);
    return reason;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<v1::GenerateDelta>> stream_;
};

class LostRouterTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLong = 3500;
  static constexpr int kSamples = 4;  // Of "two" and of the streams.

  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
    calls_ = std::make_unique<GenerateCalls>(stub());
    // Another gateway's calls reach the cluster in the same way.
    scheduler_ = v1::SchedulerService::NewStub(
        grpc::CreateChannel(cluster_.scheduler_address(), grpc::InsecureChannelCredentials()));
  }
  RolloutStub* stub() { return cluster_.stub(); }

  // Two samples of one call and two streams, each with a token, and then no router.
  void RunAndLoseTheRouter() {
    v1::GenerateRequest two = Request("two", kLong);
    two.set_n(2);
    calls_->Start(two);
    for (const char* id : {"stream-1", "stream-2"}) {
      streams_.push_back(std::make_unique<Stream>(stub(), Request(id, kLong)));
    }
    ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
      return cluster_.GatewayMetric("lockstep_gateway_generated_tokens_total") > 40 * kSamples;
    }));
    cluster_.StopRouter();
    ASSERT_TRUE(ClusterHarness::WaitUntil(
        [&] { return cluster_.GatewayMetric("lockstep_gateway_routers_connected") == 0; }));
  }
  void ExpectStreamsAborted() {
    for (const auto& stream : streams_) {
      EXPECT_EQ(stream->ReadToEnd(), v1::FINISH_REASON_ABORT);
    }
  }
  void ExpectTwoAborted() {
    const auto answer = calls_->Wait()[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    for (const v1::Sample& sample : answer->samples()) {
      EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
      EXPECT_GT(sample.token_ids().size(), 0u);
      EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
    }
  }
  void ExpectANewcomerRuns() {
    const auto answer = GenerateAll(stub(), {Request("newcomer", 20)})[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> AskScheduler(grpc::Status (v1::SchedulerService::StubInterface::*method)(
                                            grpc::ClientContext*, const Request&, Response*),
                                        const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    Response response;
    const grpc::Status status = ((*scheduler_).*method)(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpcStatus(status);
    return response;
  }

  ClusterHarness cluster_{{.model = "deploy/demo-model"}};
  std::unique_ptr<v1::SchedulerService::StubInterface> scheduler_;
  std::unique_ptr<GenerateCalls> calls_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST_F(LostRouterTest, PauseInAbortModeEndsWhatHasNoRouter) {
  ASSERT_NO_FATAL_FAILURE(RunAndLoseTheRouter());
  v1::PauseRequest pause;
  pause.set_mode(v1::PAUSE_MODE_ABORT);
  const auto paused = CallNow(stub(), &RolloutStub::Pause, pause);
  ASSERT_TRUE(paused.ok()) << paused.status();
  // Although nothing is resumed and no router is there.
  ExpectTwoAborted();
  ExpectStreamsAborted();
  GenerateCalls later(stub());
  later.Start(Request("later", 20));
  ASSERT_TRUE(cluster_.StartRouter().ok());
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
    const auto state = CallNow(stub(), &RolloutStub::GetState, {});
    return state.ok() && state->queued_sequences() == 1;
  }));
  ASSERT_TRUE(CallNow(stub(), &RolloutStub::Resume, {}).ok());
  const auto answer = later.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(LostRouterTest, AbortOfAllEndsAndCountsWhatHasNoRouter) {
  ASSERT_NO_FATAL_FAILURE(RunAndLoseTheRouter());
  v1::AbortRequest all;
  all.set_all(true);
  const auto aborted = CallNow(stub(), &RolloutStub::Abort, all);
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(aborted->aborted_sequences(), kSamples);
  EXPECT_EQ(aborted->unknown_requests(), 0);
  ExpectTwoAborted();
  ExpectStreamsAborted();
  ASSERT_TRUE(cluster_.StartRouter().ok());
  ExpectANewcomerRuns();
}

TEST_F(LostRouterTest, AbortByIdsKnowsWhatHasNoRouterAndTheRestGoesOn) {
  ASSERT_NO_FATAL_FAILURE(RunAndLoseTheRouter());
  v1::AbortRequest ids;
  for (const char* id : {"two", "stream-1", "never-there"}) ids.add_request_ids(id);
  const auto aborted = CallNow(stub(), &RolloutStub::Abort, ids);
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(aborted->aborted_sequences(), 3);
  EXPECT_EQ(aborted->unknown_requests(), 1);
  ExpectTwoAborted();
  EXPECT_EQ(streams_[0]->ReadToEnd(), v1::FINISH_REASON_ABORT);
  ASSERT_TRUE(cluster_.StartRouter().ok());
  EXPECT_EQ(streams_[1]->ReadToEnd(), v1::FINISH_REASON_LENGTH);
}

TEST_F(LostRouterTest, AbortOfAllThroughAnotherGatewayEndsWhatComesWithTheNextRouter) {
  ASSERT_NO_FATAL_FAILURE(RunAndLoseTheRouter());
  v1::AbortRequest all;
  all.set_all(true);
  const auto aborted = AskScheduler(&v1::SchedulerService::StubInterface::Abort, all);
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  ASSERT_TRUE(cluster_.StartRouter().ok());
  ExpectTwoAborted();
  ExpectStreamsAborted();
  ExpectANewcomerRuns();
}

TEST_F(LostRouterTest, PauseInAbortModeThroughAnotherGatewayEndsWhatComesWithTheNextRouter) {
  ASSERT_NO_FATAL_FAILURE(RunAndLoseTheRouter());
  v1::PauseRequest pause;
  pause.set_mode(v1::PAUSE_MODE_ABORT);
  const auto paused = AskScheduler(&v1::SchedulerService::StubInterface::Pause, pause);
  ASSERT_TRUE(paused.ok()) << paused.status();
  ASSERT_TRUE(cluster_.StartRouter().ok());
  // Still paused.
  ExpectTwoAborted();
  ExpectStreamsAborted();
  ASSERT_TRUE(CallNow(stub(), &RolloutStub::Resume, {}).ok());
  ExpectANewcomerRuns();
}

}  // namespace
}  // namespace lockstep
