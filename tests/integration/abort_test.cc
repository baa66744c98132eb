// Abort by request ids over a cluster with two gateways: it ends what came before it, and nothing
// that comes after its answer, so that a trainer can go on with partial answers under their ids.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_pool.h"
#include "services/client/arrays.h"
#include "services/gateway/gateway_server.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;
using testing::RolloutStub;
using testing::SharedClusterTest;

v1::GenerateRequest Request(const std::string& id, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  for (int i = 1; i <= 8; ++i) request.mutable_prompt_ids()->add_ids(i);
  request.set_seed(7);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

v1::AbortRequest AbortOf(const std::vector<std::string>& ids) {
  v1::AbortRequest abort;
  for (const std::string& id : ids) abort.add_request_ids(id);
  return abort;
}

// A request that is in work: its stream has brought something, and brings no more than the credit
// of one that nobody reads.
class RunningStream {
 public:
  RunningStream(RolloutStub* stub, const v1::GenerateRequest& request)
      : stream_(stub->GenerateStream(&context_, request)) {
    EXPECT_TRUE(Read());
  }
  // The ids that came, once it was aborted.
  std::vector<uint32_t> ReadToAbort() {
    while (Read()) continue;
    EXPECT_TRUE(stream_->Finish().ok());
    EXPECT_EQ(reason_, v1::FINISH_REASON_ABORT);
    return client::ReadIds(bytes_);
  }

 private:
  bool Read() {
    v1::GenerateDelta delta;
    if (!stream_->Read(&delta)) return false;
    bytes_ += delta.token_ids();
    if (delta.has_finished()) reason_ = delta.finished().finish_reason();
    return true;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<v1::GenerateDelta>> stream_;
  std::string bytes_;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;
};

class AbortTest : public SharedClusterTest<AbortTest> {
 public:
  static ClusterHarness::Options ClusterOptions() { return {.model = "null:"}; }

 protected:
  static void SetUpTestSuite() {
    SharedClusterTest::SetUpTestSuite();
    config::v1::GatewayConfig config;
    config.mutable_server()->set_listen("127.0.0.1:0");
    config.mutable_server()->set_cluster_id("test");
    config.mutable_server()->set_log_level("error");
    config.mutable_server()->set_plaintext(true);
    config.add_routers(cluster_->router_address());
    config.set_scheduler(cluster_->scheduler_address());
    auto gateway = gateway::GatewayServer::Start(*gateway::ReadGatewayOptions(config));
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    other_gateway_ = *std::move(gateway);
    other_stub_ = v1::RolloutService::NewStub(
        rpc::MakeChannel(absl::StrCat("127.0.0.1:", other_gateway_->port()), {}));
    // Ready once it knows the model.
    ASSERT_TRUE(ClusterHarness::WaitUntil(
        [] { return GenerateAll(other_stub_.get(), {Request("first", 1)})[0].ok(); }));
  }
  static void TearDownTestSuite() {
    other_stub_.reset();
    other_gateway_.reset();
    SharedClusterTest::TearDownTestSuite();
  }
  static std::vector<RolloutStub*> Gateways() { return {stub(), other_stub_.get()}; }

  static v1::AbortResponse Abort(RolloutStub* gateway, const std::vector<std::string>& ids) {
    const auto answer = CallNow(gateway, &RolloutStub::Abort, AbortOf(ids));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : v1::AbortResponse();
  }
  static absl::StatusOr<v1::GenerateResponse> GenerateByStream(RolloutStub* gateway,
                                                               const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto stream = gateway->GenerateMany(&context);
    v1::GenerateManyRequest item;
    *item.mutable_generate() = request;
    stream->Write(item);
    stream->WritesDone();
    v1::GenerateManyResponse answer;
    while (stream->Read(&answer)) continue;
    if (const grpc::Status status = stream->Finish(); !status.ok()) {
      return absl::InternalError(status.error_message());
    }
    return answer.response();
  }
  static void ExpectWhole(const absl::StatusOr<v1::GenerateResponse>& answer, size_t tokens) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->samples_size(), 1);
    EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(answer->samples(0).token_ids().size(), 4 * tokens);
  }

  static inline std::unique_ptr<gateway::GatewayServer> other_gateway_;
  static inline std::unique_ptr<RolloutStub> other_stub_;
};

TEST_F(AbortTest, RequestUnderAnIdThatNobodyKnewRunsAtOnce) {
  for (RolloutStub* aborter : Gateways()) {
    for (RolloutStub* runner : Gateways()) {
      const std::string id = absl::StrCat("unknown-", aborter == stub(), "-", runner == stub());
      const v1::AbortResponse none =
          Abort(aborter, {id, absl::StrCat(id, "-many"), absl::StrCat(id, "-score"), id});
      EXPECT_EQ(none.aborted_sequences(), 0);
      EXPECT_EQ(none.unknown_requests(), 3);
      ExpectWhole(GenerateAll(runner, {Request(id, 40)})[0], 40);
      ExpectWhole(GenerateByStream(runner, Request(absl::StrCat(id, "-many"), 40)), 40);
      v1::ScoreRequest score;
      score.set_request_id(absl::StrCat(id, "-score"));
      for (int i = 1; i <= 8; ++i) score.add_ids(i);
      const auto scored = CallNow(runner, &RolloutStub::Score, score);
      EXPECT_TRUE(scored.ok()) << scored.status();
    }
  }
}

TEST_F(AbortTest, PartialAnswerGoesOnAtOnceUnderItsId) {
  constexpr int64_t kTokens = 7000;
  for (RolloutStub* aborter : Gateways()) {
    for (RolloutStub* runner : Gateways()) {
      const std::string id = absl::StrCat("partial-", aborter == stub(), "-", runner == stub());
      RunningStream stream(stub(), Request(id, kTokens));
      const v1::AbortResponse aborted = Abort(aborter, {id});
      EXPECT_EQ(aborted.aborted_sequences(), 1);
      EXPECT_EQ(aborted.unknown_requests(), 0);
      v1::GenerateRequest rest = Request(id, kTokens);
      *rest.mutable_generated_ids() = client::ToIdField(stream.ReadToAbort());
      ExpectWhole(GenerateAll(runner, {rest})[0], kTokens);
    }
  }
}

// The very same request, without a pause: it must not be taken for a retry of the one that ended.
TEST_F(AbortTest, SameRequestRunsAgainAtOnce) {
  RunningStream stream(stub(), Request("again", 7000));
  EXPECT_EQ(Abort(stub(), {"again"}).aborted_sequences(), 1);
  ExpectWhole(GenerateAll(stub(), {Request("again", 7000)})[0], 7000);
  stream.ReadToAbort();
}

TEST_F(AbortTest, SubmitsThatRaceAbortsEachEndOnceAndTheAnswersCountThem) {
  int64_t counted = 0, ended = 0, whole = 0;
  for (int round = 0; round < 40; ++round) {
    GenerateCalls calls(stub());
    std::vector<std::string> ids;
    for (int i = 0; i < 8; ++i) {
      ids.push_back(absl::StrCat("race-", round, "-", i));
      calls.Start(Request(ids.back(), 400));
      // Through the other gateway, which knows nothing of its own.
      if (i % 4 == 3) counted += Abort(other_stub_.get(), ids).aborted_sequences();
    }
    for (const auto& answer : calls.Wait()) {
      ASSERT_TRUE(answer.ok()) << answer.status();
      const v1::Sample& sample = answer->samples(0);
      if (sample.finish_reason() == v1::FINISH_REASON_ABORT) {
        ++ended;
      } else {
        ++whole;
        EXPECT_EQ(sample.token_ids().size(), 4u * 400);
      }
    }
  }
  EXPECT_EQ(counted, ended);
  EXPECT_GT(ended, 0);
  EXPECT_EQ(ended + whole, 320);
}

}  // namespace
}  // namespace lockstep
