// Retries, attachments and outages: who asks again gets what a first call would have got.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;

v1::GenerateRequest Request(const std::string& id, int tokens) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.set_prompt_text("12+34*2=");
  request.set_seed(5);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

class RetryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  double Generated() const {
    return cluster_.GatewayMetric("lockstep_gateway_generated_tokens_total");
  }
  // Room for four sequences on one worker.
  ClusterHarness cluster_{
      {.model = "deploy/demo-model", .kv_bytes = int64_t{64} << 20, .lease_seconds = 0.3}};
};

TEST_F(RetryTest, RunningSequencesEndWhileTheSchedulerIsAwayForManyLeases) {
  GenerateCalls calls(cluster_.stub());
  for (int i = 0; i < 2; ++i) calls.Start(Request(absl::StrCat("long-", i), 3000));
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return Generated() > 100; }));
  cluster_.StopScheduler();
  for (const auto& answer : calls.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).token_ids().size(), 4u * 3000);
    EXPECT_EQ(answer->samples(0).usage().resumptions(), 0);
  }
  ASSERT_TRUE(cluster_.StartScheduler().ok());
  EXPECT_TRUE(GenerateAll(cluster_.stub(), {Request("after", 8)})[0].ok());
}

TEST_F(RetryTest, UnaryCallThatAttachesToAnUnreadStreamStillGetsTheWholeAnswer) {
  const v1::GenerateRequest request = Request("shared", 1500);
  grpc::ClientContext context;
  const auto stream = cluster_.stub()->GenerateStream(&context, request);
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return Generated() > 0; }));
  const auto attached = GenerateAll(cluster_.stub(), {request})[0];
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->samples(0).token_ids().size(), 4u * 1500);
  context.TryCancel();
}

TEST_F(RetryTest, RetryAfterAnAbortOrADeadlineRunsAgain) {
  GenerateCalls late(cluster_.stub());
  late.Start(Request("late", 2500), absl::Milliseconds(100));
  // A client this hasty may be gone before the partial answer reaches it.
  const auto partial = late.Wait()[0];
  EXPECT_EQ(partial.ok() ? partial->samples(0).finish_reason() : v1::FINISH_REASON_ABORT,
            v1::FINISH_REASON_ABORT);
  ASSERT_TRUE(ClusterHarness::WaitUntil(
      [&] { return cluster_.GatewayMetric("lockstep_gateway_samples_open") == 0; }));
  const auto again = GenerateAll(cluster_.stub(), {Request("late", 2500)})[0];
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(RetryTest, AnotherBodyUnderAnIdIsRefusedAndTheSameBodyAttaches) {
  const auto first = GenerateAll(cluster_.stub(), {Request("twice", 20)})[0];
  const auto same = GenerateAll(cluster_.stub(), {Request("twice", 20)})[0];
  ASSERT_TRUE(first.ok() && same.ok());
  EXPECT_EQ(same->SerializeAsString(), first->SerializeAsString());
  EXPECT_EQ(cluster_.GatewayMetric("lockstep_gateway_attached_total"), 1);
  EXPECT_EQ(GenerateAll(cluster_.stub(), {Request("twice", 21)})[0].status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(RetryTest, AnIdThatHasFinishedOnItsStreamIsAnsweredAgain) {
  grpc::ClientContext context;
  const auto stream = cluster_.stub()->GenerateMany(&context);
  v1::GenerateManyRequest item;
  *item.mutable_generate() = Request("repeated", 4);
  std::vector<std::string> answers;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(stream->Write(item));
    v1::GenerateManyResponse response;
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_TRUE(response.has_response()) << response.error().message();
    answers.push_back(response.response().SerializeAsString());
  }
  EXPECT_EQ(answers[0], answers[1]);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RetryTest, ItemWithoutContentIsAnErrorAndTheStreamGoesOn) {
  grpc::ClientContext context;
  const auto stream = cluster_.stub()->GenerateMany(&context);
  ASSERT_TRUE(stream->Write({}));
  v1::GenerateManyRequest item;
  *item.mutable_generate() = Request("real", 4);
  ASSERT_TRUE(stream->Write(item));
  stream->WritesDone();
  int errors = 0, answers = 0;
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
    errors += response.has_error();
    answers += response.has_response();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(errors, 1);
  EXPECT_EQ(answers, 1);
}

TEST_F(RetryTest, DrainEndsAnIdleStreamAtOnce) {
  grpc::ClientContext context;
  const auto stream = cluster_.stub()->GenerateMany(&context);
  v1::GenerateManyRequest item;
  *item.mutable_generate() = Request("before", 4);
  ASSERT_TRUE(stream->Write(item));
  v1::GenerateManyResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const absl::Time begin = absl::Now();
  cluster_.DrainGateway(absl::Seconds(60));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace lockstep
