// A resumed request that ends before it runs again gives back all that it was sent, whatever ended
// it and wherever it waited.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/packed_array.h"
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

constexpr int64_t kGiven = 200;

int64_t Count(const std::string& bytes) { return base::PackedCount(bytes); }

class EarlyEndTest : public SharedClusterTest<EarlyEndTest> {
 public:
  static ClusterHarness::Options ClusterOptions() {
    return {.model = "deploy/demo-model",
            .workers = 1,
            .sequences_max = 4,
            .drain_finish_seconds = 0.05};
  }

 protected:
  static v1::GenerateRequest Request(const std::string& id, int64_t tokens) {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_prompt_text("Tell me a story:");
    request.set_exact_seed(11);
    request.mutable_stop()->set_max_new_tokens(tokens);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_logprobs()->set_top_count(2);
    return request;
  }

  void SetUp() override {
    const auto part = GenerateAll(stub(), {Request(absl::StrCat(Name(), "-part"), kGiven)})[0];
    ASSERT_TRUE(part.ok()) << part.status();
    part_ = part->samples(0);
  }
  static std::string Name() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  v1::GenerateRequest Resumed(const std::string& id) const {
    v1::GenerateRequest request = Request(id, 3000);
    *request.mutable_generated_ids() = client::ToIdField(client::ReadIds(part_.token_ids()));
    return request;
  }

  // All that the request was sent, and logprobs and versions of what was computed, bit for bit.
  void ExpectKeepsGiven(const v1::Sample& sample, v1::FinishReason reason) const {
    const int64_t tokens = Count(sample.token_ids());
    const int64_t scored = tokens - sample.unscored_tokens();
    EXPECT_EQ(sample.finish_reason(), reason);
    ASSERT_GE(tokens, kGiven);
    EXPECT_TRUE(sample.token_ids().starts_with(part_.token_ids()));
    EXPECT_EQ(sample.usage().generated_tokens(), tokens);
    EXPECT_EQ(Count(sample.logprobs().raw()), scored);
    EXPECT_EQ(Count(sample.logprobs().scaled()), scored);
    EXPECT_EQ(Count(sample.logprobs().top_ids()), 2 * scored);
    const size_t bytes = 4 * static_cast<size_t>(std::min(scored, kGiven));
    EXPECT_EQ(sample.logprobs().raw().substr(0, bytes), part_.logprobs().raw().substr(0, bytes));
    int64_t versions = 0;
    for (const v1::VersionRun& run : sample.weight_versions()) versions += run.count();
    EXPECT_EQ(versions, scored);
    EXPECT_EQ(sample.receipt().digest().empty(), sample.unscored_tokens() > 0);
    if (sample.unscored_tokens() == 0) {
      EXPECT_TRUE(sample.text().starts_with(part_.text()));
      return;
    }
    EXPECT_EQ(tokens, kGiven);
    EXPECT_EQ(sample.text(), part_.text());
    EXPECT_EQ(sample.text_tail_bytes(), part_.text_tail_bytes());
  }

  static void Pause(v1::PauseMode mode) {
    v1::PauseRequest request;
    request.set_mode(mode);
    const auto paused = CallNow(stub(), &RolloutStub::Pause, request);
    ASSERT_TRUE(paused.ok()) << paused.status();
  }
  static void Resume() { ASSERT_TRUE(CallNow(stub(), &RolloutStub::Resume, {}).ok()); }
  static void Abort(const std::string& id) {  // Empty: all.
    v1::AbortRequest request;
    id.empty() ? request.set_all(true) : request.add_request_ids(id);
    const auto aborted = CallNow(stub(), &RolloutStub::Abort, request);
    ASSERT_TRUE(aborted.ok()) << aborted.status();
  }
  static void ReplaceGateway() {
    cluster_->DrainGateway(absl::Seconds(60));
    const absl::Status started = cluster_->StartGateway();
    ASSERT_TRUE(started.ok()) << started;
    ASSERT_TRUE(cluster_->WaitForWorkers(1));
  }
  static bool WaitForQueued(int count) {
    return ClusterHarness::WaitUntil([count] {
      const auto state = CallNow(stub(), &RolloutStub::GetState, {});
      return state.ok() && state->queued_sequences() >= count;
    });
  }
  static bool WaitForTokens(double count) {
    return ClusterHarness::WaitUntil([count] {
      return cluster_->GatewayMetric("lockstep_gateway_generated_tokens_total") >= count;
    });
  }

  v1::Sample part_;
};

TEST_F(EarlyEndTest, WhateverEndsItWhereItWaitsGivesBackTheGivenIds) {
  struct Case {
    const char* name;
    v1::FinishReason reason;
    std::function<void()> end;
    absl::Duration timeout = absl::Seconds(60);
  };
  const Case cases[] = {
      {"deadline", v1::FINISH_REASON_ABORT, [] {}, absl::Seconds(3)},
      {"abort-by-id", v1::FINISH_REASON_ABORT, [] { Abort("abort-by-id"); }},
      {"abort-of-all", v1::FINISH_REASON_ABORT, [] { Abort(""); }},
      {"pause", v1::FINISH_REASON_ABORT, [] { Pause(v1::PAUSE_MODE_ABORT); }},
      {"no-router", v1::FINISH_REASON_ABORT,
       [] {
         cluster_->StopRouter();
         ASSERT_TRUE(ClusterHarness::WaitUntil(
             [] { return cluster_->GatewayMetric("lockstep_gateway_routers_connected") == 0; }));
         Abort("");
         ASSERT_TRUE(cluster_->StartRouter().ok());
       }},
      {"drain", v1::FINISH_REASON_PARTIAL, ReplaceGateway},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Pause(v1::PAUSE_MODE_KEEP);
    GenerateCalls calls(stub());
    calls.Start(Resumed(c.name), c.timeout);
    EXPECT_TRUE(WaitForQueued(1));
    c.end();
    const auto answer = calls.Wait()[0];
    Resume();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).unscored_tokens(), kGiven);
    ExpectKeepsGiven(answer->samples(0), c.reason);
  }
}

TEST_F(EarlyEndTest, AStreamBringsTheGivenIdsWithItsEnd) {
  Pause(v1::PAUSE_MODE_KEEP);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  const auto stream = stub()->GenerateStream(&context, Resumed("streamed"));
  EXPECT_TRUE(WaitForQueued(1));
  Abort("streamed");
  v1::Sample sample;
  std::string ids, text;
  v1::LogprobArrays logprobs;
  v1::GenerateDelta delta;
  while (stream->Read(&delta)) {
    EXPECT_TRUE(delta.token_ids().empty() || delta.token_begin() == Count(ids));
    ids += delta.token_ids();
    text += delta.text();
    logprobs.mutable_raw()->append(delta.logprobs().raw());
    if (delta.has_finished()) sample = delta.finished();
  }
  EXPECT_TRUE(stream->Finish().ok());
  Resume();
  EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(sample.unscored_tokens(), kGiven);
  EXPECT_EQ(sample.usage().generated_tokens(), kGiven);
  EXPECT_EQ(ids, part_.token_ids());
  EXPECT_EQ(text, part_.text());
  EXPECT_TRUE(logprobs.raw().empty());
}

// Far more than run at once: some run, some are being computed again, most wait.
TEST_F(EarlyEndTest, PartialsThatAreSentAgainLoseNothingWhenTheirStreamEndsEarly) {
  std::vector<v1::GenerateRequest> items = {Request("short", 10)};
  for (int i = 0; i < 40; ++i) items.push_back(Resumed(absl::StrCat("again-", i)));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  const auto stream = stub()->GenerateMany(&context);
  v1::GenerateManyRequest message;
  message.mutable_options()->set_groups_total(1);
  ASSERT_TRUE(stream->Write(message));
  Pause(v1::PAUSE_MODE_KEEP);  // Until all of them are there.
  for (const v1::GenerateRequest& item : items) {
    *message.mutable_generate() = item;
    ASSERT_TRUE(stream->Write(message));
  }
  stream->WritesDone();
  EXPECT_TRUE(WaitForQueued(static_cast<int>(items.size())));
  Resume();
  int partial = 0, unscored = 0;
  v1::GenerateManyResponse answer;
  while (stream->Read(&answer)) {
    ASSERT_TRUE(answer.has_response()) << answer.error().message();
    if (answer.request_id() == "short") continue;
    SCOPED_TRACE(answer.request_id());
    ++partial;
    unscored += answer.response().samples(0).unscored_tokens() > 0;
    ExpectKeepsGiven(answer.response().samples(0), v1::FINISH_REASON_PARTIAL);
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(partial, 40);
  EXPECT_GT(unscored, 0);
}

TEST_F(EarlyEndTest, ADeadlineUnderLoadLosesNothing) {
  GenerateCalls load(stub());
  for (int i = 0; i < 4; ++i) {
    load.Start(Request(absl::StrCat("load-", i), 400));
  }
  GenerateCalls calls(stub());
  for (int i = 0; i < 24; ++i) {
    calls.Start(Resumed(absl::StrCat("late-", i)), absl::Milliseconds(300 + 50 * i));
  }
  int answered = 0;
  for (const auto& answer : calls.Wait()) {
    if (!answer.ok()) continue;  // A client so hasty may be gone before its answer.
    ++answered;
    ExpectKeepsGiven(answer->samples(0), v1::FINISH_REASON_ABORT);
  }
  EXPECT_GT(answered, 0);
  load.Wait();
}

TEST_F(EarlyEndTest, WhatCameBackUnscoredGoesOnToTheUninterruptedEnd) {
  Pause(v1::PAUSE_MODE_KEEP);
  GenerateCalls calls(stub());
  calls.Start(Resumed("first-try"));
  EXPECT_TRUE(WaitForQueued(1));
  Abort("first-try");
  const auto early = calls.Wait()[0];
  Resume();
  ASSERT_TRUE(early.ok()) << early.status();
  v1::GenerateRequest rest = Request("second-try", kGiven + 50);
  *rest.mutable_generated_ids() = client::ToIdField(client::ReadIds(early->samples(0).token_ids()));
  const auto both = GenerateAll(stub(), {rest, Request("uninterrupted", kGiven + 50)});
  ASSERT_TRUE(both[0].ok() && both[1].ok());
  EXPECT_EQ(Bits(*both[0]), Bits(*both[1]));
}

// A gateway drains in the middle of `request`; the client goes on by itself at the next one.
class ContinuationTest : public EarlyEndTest {
 protected:
  // The drain comes when the request has some tokens, `before_it` runs then, and `after_it` when
  // there is another gateway.
  static absl::StatusOr<v1::GenerateResponse> AcrossADrain(
      const v1::GenerateRequest& request, const std::function<void()>& before_it = [] {},
      const std::function<void()>& after_it = [] {}) {
    client::RolloutClient client(
        {.target = cluster_->gateway_address(), .retry = absl::Seconds(30)});
    absl::StatusOr<v1::GenerateResponse> answer = absl::UnknownError("not answered");
    const double before = cluster_->GatewayMetric("lockstep_gateway_generated_tokens_total");
    {
      const std::jthread caller([&] { answer = client.Generate(request); });
      EXPECT_TRUE(WaitForTokens(before + 30));
      before_it();
      ReplaceGateway();
      after_it();
    }
    // The new gateway was asked for the rest.
    EXPECT_TRUE(ClusterHarness::WaitUntil(
        [] { return cluster_->GatewayMetric("lockstep_gateway_requests_total") > 0; }));
    return answer;
  }
};

TEST_F(ContinuationTest, HasTheBitsAndTheReceiptOfAQuietRunAlsoWithPromptLogprobs) {
  for (const bool prompt : {false, true}) {
    v1::GenerateRequest request = Request(absl::StrCat("drained-", prompt), 2000);
    if (prompt) request.mutable_logprobs()->set_prompt_from(1);
    const auto joined = AcrossADrain(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    request.clear_request_id();
    const auto quiet = GenerateAll(stub(), {request})[0];
    ASSERT_TRUE(quiet.ok()) << quiet.status();
    EXPECT_EQ(joined->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(joined->samples(0).receipt().digest(), quiet->samples(0).receipt().digest());
    EXPECT_EQ(joined->samples(0).logprobs().raw(), quiet->samples(0).logprobs().raw());
    EXPECT_EQ(joined->samples(0).prompt_logprobs().raw(),
              quiet->samples(0).prompt_logprobs().raw());
    EXPECT_EQ(quiet->samples(0).prompt_logprobs().raw().empty(), !prompt);
  }
}

TEST_F(ContinuationTest, ThatEndsWhereItWaitsKeepsWhatTheFirstGatewayHandedOver) {
  const auto answer = AcrossADrain(
      Request("cut-twice", 3000), [] { Pause(v1::PAUSE_MODE_KEEP); },
      [] {
        EXPECT_TRUE(WaitForQueued(1));
        Abort("");
      });
  Resume();
  ASSERT_TRUE(answer.ok()) << answer.status();
  const v1::Sample& sample = answer->samples(0);
  EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_GE(Count(sample.token_ids()), 30);
  EXPECT_EQ(Count(sample.logprobs().raw()), Count(sample.token_ids()));
  EXPECT_EQ(sample.unscored_tokens(), 0);
  EXPECT_FALSE(sample.receipt().digest().empty());
  EXPECT_FALSE(sample.text().empty());
}

}  // namespace
}  // namespace lockstep
