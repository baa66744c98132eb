// lockstep_gateway_requests_total against what clients saw: every kind of end of every kind of
// request, each made once and noted by its client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/buckets.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateCalls;
using testing::RolloutStub;
using Counts = std::map<std::string, int>;

constexpr int64_t kMessageBytesMax = int64_t{1} << 20;  // The smallest there is.

std::string Label(absl::StatusCode code) {
  return metrics::StatusCodeLabels()[static_cast<size_t>(code)];
}

v1::GenerateRequest Request(const std::string& id = "") {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.mutable_prompt_ids()->add_ids(7);
  request.mutable_stop()->set_max_new_tokens(4);
  return request;
}

v1::GenerateRequest WrongRequest(const std::string& id = "") {
  v1::GenerateRequest request = Request(id);
  request.mutable_sampling()->set_temperature(-1);
  return request;
}

v1::ScoreRequest Scored() {
  v1::ScoreRequest request;
  for (int i = 0; i < 8; ++i) request.add_ids(i);
  return request;
}

// More than a message may have, unless it stops early.
v1::GenerateRequest LargeRequest() {
  v1::GenerateRequest request = Request();
  request.set_n(16);
  request.mutable_stop()->set_max_new_tokens(200);
  request.mutable_stop()->add_stop_ids(3);
  request.mutable_logprobs()->set_top_count(64);
  return request;
}

class RequestCountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  RolloutStub* stub() { return cluster_.stub(); }

  void Saw(const absl::Status& status) { ++seen_[Label(status.code())]; }
  void Saw(const grpc::Status& status) { Saw(rpc::FromGrpcStatus(status)); }

  // Requests wait at the scheduler until Resume.
  void Pause() { ASSERT_TRUE(CallNow(stub(), &RolloutStub::Pause, {}).ok()); }
  void Resume() { ASSERT_TRUE(CallNow(stub(), &RolloutStub::Resume, {}).ok()); }
  void WaitUntilWaiting(int samples) {
    ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
      return cluster_.SchedulerMetric("lockstep_scheduler_queued_sequences") == samples;
    }));
  }

  Counts Counted() const {
    Counts counts;
    for (const std::string& code : metrics::StatusCodeLabels()) {
      const double count = cluster_.GatewayMetric(
          absl::StrCat("lockstep_gateway_requests_total{code=\"", code, "\"}"));
      if (count > 0) counts[code] = static_cast<int>(count);
    }
    return counts;
  }
  // A call is counted when its answer has left, so perhaps after its client has it.
  void ExpectCountedAsSeen() {
    ClusterHarness::WaitUntil([&] { return Counted() == seen_; }, absl::Seconds(10));
    EXPECT_EQ(Counted(), seen_);
    EXPECT_EQ(cluster_.GatewayMetric("lockstep_gateway_request_seconds_count"), seen_["ok"]);
  }

  ClusterHarness cluster_{{.workers = 1,
                           .kv_bytes = int64_t{64} << 20,
                           .stream_idle_timeout_seconds = 1,
                           .message_bytes_max = kMessageBytesMax}};
  Counts seen_;
};

TEST_F(RequestCountTest, CallsWithOneAnswer) {
  Saw(CallNow(stub(), &RolloutStub::Generate, Request("kept")).status());
  Saw(CallNow(stub(), &RolloutStub::Generate, Request("kept")).status());
  Saw(CallNow(stub(), &RolloutStub::Generate, WrongRequest("kept")).status());
  v1::GenerateRequest other = Request("kept");
  other.mutable_sampling()->set_temperature(0.5);
  Saw(CallNow(stub(), &RolloutStub::Generate, other).status());
  other.set_require_weight_version(99);
  Saw(CallNow(stub(), &RolloutStub::Generate, other).status());
  Saw(CallNow(stub(), &RolloutStub::Score, Scored()).status());
  v1::ScoreRequest wrong = Scored();
  wrong.set_from(99);
  Saw(CallNow(stub(), &RolloutStub::Score, wrong).status());
  Saw(CallNow(stub(), &RolloutStub::Generate, LargeRequest()).status());
  EXPECT_THAT(seen_, ::testing::UnorderedElementsAre(::testing::Pair("ok", 3),
                                                     ::testing::Pair("invalid_argument", 2),
                                                     ::testing::Pair("already_exists", 1),
                                                     ::testing::Pair("failed_precondition", 1),
                                                     ::testing::Pair("resource_exhausted", 1)));
  ExpectCountedAsSeen();
}

TEST_F(RequestCountTest, CallsThatAreGivenUp) {
  Pause();
  GenerateCalls calls(stub());
  calls.Start(Request());
  calls.Start(Request("known"));
  WaitUntilWaiting(2);
  calls.Cancel(0);
  calls.Cancel(1);
  for (const auto& answer : calls.Wait()) Saw(answer.status());

  // No answer can leave before these deadlines.
  for (const absl::Duration timeout : {absl::Milliseconds(20), absl::Seconds(1)}) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::ScoreResponse response;
    Saw(stub()->Score(&context, Scored(), &response));
  }
  EXPECT_EQ(seen_["cancelled"], 2);
  EXPECT_EQ(seen_["deadline_exceeded"], 2);

  // What a score had so far is no answer; a generation's is one.
  absl::Status scored;
  std::thread score([&] { scored = CallNow(stub(), &RolloutStub::Score, Scored()).status(); });
  GenerateCalls aborted(stub());
  aborted.Start(Request());
  WaitUntilWaiting(3);  // With the one that its client may ask for again.
  v1::AbortRequest abort;
  abort.set_all(true);
  ASSERT_TRUE(CallNow(stub(), &RolloutStub::Abort, abort).ok());
  score.join();
  Saw(scored);
  Saw(aborted.Wait()[0].status());
  EXPECT_EQ(seen_["aborted"], 1);
  EXPECT_EQ(seen_["ok"], 1);
  ExpectCountedAsSeen();
}

TEST_F(RequestCountTest, StreamsOfDeltas) {
  const auto read_all = [&](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto stream = stub()->GenerateStream(&context, request);
    v1::GenerateDelta delta;
    while (stream->Read(&delta)) {
    }
    Saw(stream->Finish());
  };
  read_all(Request());
  read_all(WrongRequest());
  Pause();
  {
    grpc::ClientContext context;
    const auto stream = stub()->GenerateStream(&context, Request());
    v1::GenerateDelta delta;
    ASSERT_TRUE(stream->Read(&delta));
    context.TryCancel();
    while (stream->Read(&delta)) {
    }
    Saw(stream->Finish());
  }
  EXPECT_EQ(seen_, (Counts{{"ok", 1}, {"invalid_argument", 1}, {"cancelled", 1}}));
  ExpectCountedAsSeen();
}

TEST_F(RequestCountTest, PromptsOfAStream) {
  const auto write = [](auto* stream, const v1::GenerateRequest& request) {
    v1::GenerateManyRequest message;
    *message.mutable_generate() = request;
    ASSERT_TRUE(stream->Write(message));
  };
  grpc::ClientContext context;
  const auto stream = stub()->GenerateMany(&context);
  write(stream.get(), Request("a"));
  write(stream.get(), Request("b"));
  write(stream.get(), WrongRequest("c"));
  write(stream.get(), Request(""));
  v1::GenerateManyResponse response;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    Saw(rpc::FromErrorDetail(response.error()));
  }
  EXPECT_EQ(seen_, (Counts{{"ok", 2}, {"invalid_argument", 2}}));
  ExpectCountedAsSeen();

  // In work when their client goes.
  Pause();
  write(stream.get(), Request("d"));
  write(stream.get(), Request("e"));
  WaitUntilWaiting(2);
  context.TryCancel();
  while (stream->Read(&response)) {
  }
  const absl::Status ended = rpc::FromGrpcStatus(stream->Finish());
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  Saw(ended);
  Saw(ended);
  ExpectCountedAsSeen();
}

// The answers are more than the transport takes on its own, so some are never read.
TEST_F(RequestCountTest, AnswersThatTheirClientLeaves) {
  grpc::ClientContext context;
  const auto stream = stub()->GenerateMany(&context);
  constexpr int kPrompts = 40;
  for (int i = 0; i < kPrompts; ++i) {
    v1::GenerateManyRequest message;
    *message.mutable_generate() = LargeRequest();
    message.mutable_generate()->set_n(4);
    message.mutable_generate()->set_request_id(absl::StrCat("large-", i));
    ASSERT_TRUE(stream->Write(message));
  }
  const auto counted = [&] {
    int all = 0;
    for (const auto& [code, count] : Counted()) all += count;
    return all;
  };
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return counted() == kPrompts; }));
  Counts counts = Counted();
  EXPECT_GT(counts["ok"], 0);
  EXPECT_GT(counts["deadline_exceeded"], 0) << "stream_idle_timeout ended no answer";
  EXPECT_EQ(counts["ok"] + counts["deadline_exceeded"], kPrompts);
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
}

}  // namespace
}  // namespace lockstep
