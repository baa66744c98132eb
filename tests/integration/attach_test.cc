// Callers of one request id: each gets what it would have got alone, whatever the others want.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
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
using testing::GenerateManyNow;
using testing::ManyAnswers;
using testing::RolloutStub;

constexpr absl::Duration kShort = absl::Milliseconds(1500);
constexpr absl::Duration kLong = absl::Seconds(60);

v1::GenerateRequest Request(const std::string& id, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.set_prompt_text("Tell me a story:");
  request.set_seed(3);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

v1::GenerateManyRequest Options(int64_t groups_total) {
  v1::GenerateManyRequest message;
  message.mutable_options()->set_groups_total(groups_total);
  return message;
}

v1::GenerateManyRequest Item(const v1::GenerateRequest& request,
                             absl::Duration timeout = absl::ZeroDuration()) {
  v1::GenerateManyRequest message;
  *message.mutable_generate() = request;
  message.set_timeout_seconds(absl::ToDoubleSeconds(timeout));
  return message;
}

// What a GenerateStream brought of its only sample.
struct Streamed {
  std::string ids;
  v1::Sample finished;
  grpc::Status status;
};
Streamed StreamNow(RolloutStub* stub, const v1::GenerateRequest& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  const auto stream = stub->GenerateStream(&context, request);
  Streamed streamed;
  v1::GenerateDelta delta;
  while (stream->Read(&delta)) {
    streamed.ids += delta.token_ids();
    if (delta.has_finished()) streamed.finished = delta.finished();
  }
  streamed.status = stream->Finish();
  return streamed;
}

class AttachTest : public testing::SharedClusterTest<AttachTest> {
 protected:
  static double Metric(const std::string& name) { return cluster_->GatewayMetric(name); }
  static double Attached() { return Metric("lockstep_gateway_attached_total"); }
  static bool WaitForAttached(double count) {
    return ClusterHarness::WaitUntil([count] { return Attached() >= count; });
  }
  static bool WaitForTokens(double count) {
    return ClusterHarness::WaitUntil(
        [count] { return Metric("lockstep_gateway_generated_tokens_total") >= count; });
  }
  static bool WaitForOpenSamples(double count) {
    return ClusterHarness::WaitUntil(
        [count] { return Metric("lockstep_gateway_samples_open") == count; });
  }
  // Until Resume nothing that runs goes on, and nothing that waits starts.
  static void Pause() {
    v1::PauseRequest request;
    request.set_mode(v1::PAUSE_MODE_KEEP);
    ASSERT_TRUE(CallNow(stub(), &RolloutStub::Pause, request).ok());
  }
  static void Resume() { ASSERT_TRUE(CallNow(stub(), &RolloutStub::Resume, {}).ok()); }
};

TEST_F(AttachTest, EachCallerIsHeldByItsOwnDeadline) {
  const auto quiet = GenerateAll(stub(), {Request("", 2000)})[0];
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  const std::string& ids = quiet->samples(0).token_ids();
  for (const bool running : {false, true}) {
    SCOPED_TRACE(running ? "it runs" : "it waits");
    const v1::GenerateRequest request = Request(absl::StrCat("deadlines-", running), 2000);
    const double attached = Attached();
    const double ok = Metric(R"(lockstep_gateway_requests_total{code="ok"})");
    if (!running) Pause();
    GenerateCalls hasty(stub());
    const double tokens = Metric("lockstep_gateway_generated_tokens_total");
    hasty.Start(request, kShort);
    if (running) {
      ASSERT_TRUE(WaitForTokens(tokens + 10));
      Pause();
    }
    ASSERT_TRUE(WaitForOpenSamples(1));
    GenerateCalls patient(stub());
    patient.Start(request, kLong);
    Streamed hasty_stream, patient_stream;
    ManyAnswers many, hasty_many;
    std::vector<std::jthread> callers;
    callers.emplace_back([&] { patient_stream = StreamNow(stub(), request, kLong); });
    callers.emplace_back([&] { hasty_stream = StreamNow(stub(), request, kShort); });
    callers.emplace_back([&] { many = GenerateManyNow(stub(), {Item(request)}); });
    callers.emplace_back([&] { hasty_many = GenerateManyNow(stub(), {Item(request, kShort)}); });
    EXPECT_TRUE(WaitForAttached(attached + 5));

    // Half answers while it goes on for the others.
    const auto cut = hasty.Wait()[0];
    callers[1].join();
    callers[3].join();
    EXPECT_EQ(Metric("lockstep_gateway_samples_open"), 1);
    EXPECT_EQ(patient.finished_count(), 0u);
    Resume();
    const auto whole = patient.Wait()[0];
    callers.clear();

    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_TRUE(hasty_stream.status.ok()) << hasty_stream.status.error_message();
    for (const v1::Sample& sample :
         {cut->samples(0), hasty_many.by_id[request.request_id()].response().samples(0)}) {
      EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
      EXPECT_TRUE(ids.starts_with(sample.token_ids()));
      EXPECT_EQ(sample.token_ids().empty(), !running);
      EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
      EXPECT_FALSE(sample.receipt().digest().empty());
    }
    EXPECT_EQ(hasty_stream.finished.finish_reason(), v1::FINISH_REASON_ABORT);
    EXPECT_TRUE(ids.starts_with(hasty_stream.ids));
    EXPECT_EQ(hasty_stream.ids.empty(), !running);

    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(Bits(*whole), Bits(*quiet));
    EXPECT_EQ(Bits(many.by_id[request.request_id()].response()), Bits(*quiet));
    EXPECT_EQ(patient_stream.ids, ids);
    EXPECT_EQ(patient_stream.finished.finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_TRUE(ClusterHarness::WaitUntil(
        [&] { return Metric(R"(lockstep_gateway_requests_total{code="ok"})") == ok + 6; }));
  }
}

TEST_F(AttachTest, AScoreWhoseDeadlinePassesTakesNothingFromAnother) {
  v1::ScoreRequest request;
  for (int i = 0; i < 300; ++i) request.add_ids(i);
  const auto quiet = CallNow(stub(), &RolloutStub::Score, request);
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  request.set_request_id("scored");
  Pause();
  const auto score = [&request](absl::Duration timeout, absl::StatusOr<v1::ScoreResponse>* out) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::ScoreResponse response;
    const absl::Status status = rpc::FromGrpcStatus(stub()->Score(&context, request, &response));
    if (status.ok()) *out = std::move(response);
    if (!status.ok()) *out = status;
  };
  absl::StatusOr<v1::ScoreResponse> hasty, patient;
  std::jthread first([&] { score(kShort, &hasty); });
  ASSERT_TRUE(WaitForOpenSamples(1));
  const double attached = Attached();
  std::jthread second([&] { score(kLong, &patient); });
  EXPECT_TRUE(WaitForAttached(attached + 1));
  first.join();
  EXPECT_EQ(hasty.status().code(), absl::StatusCode::kDeadlineExceeded) << hasty.status();
  Resume();
  second.join();
  ASSERT_TRUE(patient.ok()) << patient.status();
  EXPECT_EQ(patient->logprobs().raw(), quiet->logprobs().raw());
  EXPECT_EQ(patient->receipt().digest(), quiet->receipt().digest());
}

TEST_F(AttachTest, WhatAStreamNeedsNoLongerGoesOnForAnotherCaller) {
  const v1::GenerateRequest shared = Request("wanted-elsewhere", 3000);
  ManyAnswers other;
  std::jthread caller([&] { other = GenerateManyNow(stub(), {Options(1), Item(shared)}); });
  ASSERT_TRUE(WaitForOpenSamples(1));
  ManyAnswers own = GenerateManyNow(stub(), {Options(1), Item(Request("quick", 5)), Item(shared)});
  caller.join();
  EXPECT_EQ(own.by_id["quick"].response().samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(own.by_id["wanted-elsewhere"].response().samples(0).finish_reason(),
            v1::FINISH_REASON_PARTIAL);
  EXPECT_EQ(other.by_id["wanted-elsewhere"].response().samples(0).finish_reason(),
            v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(other.status.ok() && own.status.ok());
}

TEST_F(AttachTest, WholeAnswerOfAStreamThatSelectsIsKeptForEveryKindOfCall) {
  const v1::GenerateRequest request = Request("selected", 20);
  const auto selected = GenerateManyNow(stub(), {Options(1), Item(request)});
  const double generated = Metric("lockstep_gateway_generated_tokens_total");
  const auto again = GenerateAll(stub(), {request})[0];
  const auto plain = GenerateManyNow(stub(), {Item(request)});
  ASSERT_TRUE(again.ok()) << again.status();
  const std::string bytes = selected.by_id.at("selected").response().SerializeAsString();
  EXPECT_EQ(again->SerializeAsString(), bytes);
  EXPECT_EQ(plain.by_id.at("selected").response().SerializeAsString(), bytes);
  EXPECT_EQ(Metric("lockstep_gateway_generated_tokens_total"), generated);
}

TEST_F(AttachTest, PartialOfAStreamThatSelectsIsNotKept) {
  const v1::GenerateRequest request = Request("dropped", 3000);
  const auto selected =
      GenerateManyNow(stub(), {Options(1), Item(Request("kept", 5)), Item(request)});
  EXPECT_EQ(selected.by_id.at("dropped").response().samples(0).finish_reason(),
            v1::FINISH_REASON_PARTIAL);
  const auto again = GenerateAll(stub(), {request})[0];
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
}

}  // namespace
}  // namespace lockstep
