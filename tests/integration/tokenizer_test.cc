// A gateway whose tokenizer.json is not the model's: it would make other ids of texts, and other
// texts of ids, under the same fingerprint and receipts. It serves nobody until it fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "nlohmann/json.hpp"
#include "services/text/tokenizer.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::CallNow;
using testing::ClusterHarness;
using ::testing::HasSubstr;
using testing::RolloutStub;

constexpr char kModel[] = "deploy/demo-model";

v1::GenerateRequest TextRequest() {
  v1::GenerateRequest request;
  request.set_prompt_text("12+34*2=");
  request.mutable_stop()->set_max_new_tokens(4);
  return request;
}

v1::GenerateRequest IdsRequest() {
  v1::GenerateRequest request = TextRequest();
  for (const int64_t id : {16, 17, 10}) request.mutable_prompt_ids()->add_ids(id);
  return request;
}

class TokenizerTest : public ::testing::Test {
 protected:
  // The demo model with two tokens swapped: `other_` differs from it in tokenizer.json alone.
  void SetUp() override {
    std::filesystem::copy(kModel, other_.path(), std::filesystem::copy_options::recursive);
    std::ifstream file(other_.File("tokenizer.json"));
    nlohmann::json json = nlohmann::json::parse(file);
    nlohmann::json& vocabulary = json["model"]["vocab"];
    std::swap(vocabulary["1"], vocabulary["2"]);
    testing::WriteBytes(other_.File("tokenizer.json"), json.dump());
  }
  void Start(const std::string& model, const std::string& tokenizer_directory) {
    cluster_ = std::make_unique<ClusterHarness>(ClusterHarness::Options{
        .model = model, .workers = 1, .tokenizer_directory = tokenizer_directory});
    for (const absl::Status& status :
         {cluster_->StartScheduler(), cluster_->StartRouter(), cluster_->StartGateway()}) {
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void StartWorker(const std::string& model) {
    const absl::Status status = cluster_->StartWorker(0, model);
    ASSERT_TRUE(status.ok()) << status;
  }
  RolloutStub* stub() { return cluster_->stub(); }
  bool Ready() const {
    return rpc::CheckHealth(rpc::MakeChannel(cluster_->gateway_address()), "ready",
                            absl::Seconds(10))
        .value_or(false);
  }

  std::string Digest(const std::string& directory) const {
    return (*text::Tokenizer::Load(directory))->digest().ToString();
  }
  // What every call that depends on the model answers, one after the other.
  std::vector<absl::Status> Calls() {
    std::vector<absl::Status> ends;
    for (const v1::GenerateRequest& request : {TextRequest(), IdsRequest()}) {
      ends.push_back(CallNow(stub(), &RolloutStub::Generate, request).status());
      {
        grpc::ClientContext context;
        const auto stream = stub()->GenerateStream(&context, request);
        v1::GenerateDelta delta;
        while (stream->Read(&delta)) {
        }
        ends.push_back(rpc::FromGrpcStatus(stream->Finish()));
      }
      ends.push_back(EndOfItem(request));
      v1::EstimateRequest estimate;
      *estimate.add_requests() = request;
      ends.push_back(CallNow(stub(), &RolloutStub::Estimate, estimate).status());
    }
    v1::ScoreRequest score;
    for (int i = 0; i < 4; ++i) score.add_ids(i);
    ends.push_back(CallNow(stub(), &RolloutStub::Score, score).status());
    v1::TokenizeRequest tokenize;
    tokenize.set_text("12");
    ends.push_back(CallNow(stub(), &RolloutStub::Tokenize, tokenize).status());
    v1::DetokenizeRequest detokenize;
    detokenize.add_ids(16);
    ends.push_back(CallNow(stub(), &RolloutStub::Detokenize, detokenize).status());
    return ends;
  }
  absl::Status EndOfItem(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto stream = stub()->GenerateMany(&context);
    v1::GenerateManyRequest item;
    *item.mutable_generate() = request;
    item.mutable_generate()->set_request_id(absl::StrCat("item-", ++items_));
    EXPECT_TRUE(stream->Write(item));
    stream->WritesDone();
    v1::GenerateManyResponse answer;
    EXPECT_TRUE(stream->Read(&answer));
    EXPECT_TRUE(stream->Finish().ok());
    return answer.has_error() ? rpc::FromErrorDetail(answer.error()) : absl::OkStatus();
  }
  bool BecomesReady(bool ready) {
    return ClusterHarness::WaitUntil([&] { return Ready() == ready; });
  }

  const testing::TemporaryDirectory other_;
  int items_ = 0;
  std::unique_ptr<ClusterHarness> cluster_;
};

TEST_F(TokenizerTest, NobodyIsServedByAnothersUntilTheModelIsItsOwn) {
  ::testing::internal::CaptureStderr();
  Start(kModel, other_.path());
  EXPECT_FALSE(Ready());
  for (const absl::Status& end : Calls()) {
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  }
  StartWorker(kModel);
  ASSERT_TRUE(cluster_->WaitForWorkers(1));
  for (const absl::Status& end : Calls()) {
    EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition) << end;
    EXPECT_THAT(std::string(end.message()),
                AllOf(HasSubstr(other_.File("tokenizer.json")), HasSubstr(Digest(other_.path())),
                      HasSubstr(Digest(kModel)), HasSubstr("tokenizer_dir")));
  }
  EXPECT_FALSE(Ready());
  EXPECT_EQ(CallNow(stub(), &RolloutStub::GetServerInfo, {})->fingerprint().tokenizer_digest(),
            Digest(kModel));

  cluster_->StopWorker(0);
  StartWorker(other_.path());
  ASSERT_TRUE(BecomesReady(true));
  for (const absl::Status& end : Calls()) EXPECT_TRUE(end.ok()) << end;

  cluster_->StopWorker(0);
  StartWorker(kModel);
  ASSERT_TRUE(BecomesReady(false));
  for (const absl::Status& end : Calls()) {
    EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition) << end;
  }
  cluster_.reset();
  // One line for each change, however many requests are refused.
  const std::vector<std::string> log =
      absl::StrSplit(::testing::internal::GetCapturedStderr(), "wrong_tokenizer");
  EXPECT_EQ(log.size(), 2u + 1u);
}

TEST_F(TokenizerTest, WorkersWithoutOneFitNoGatewayWithOne) {
  std::filesystem::remove(other_.File("tokenizer.json"));
  Start(other_.path(), kModel);
  StartWorker(other_.path());
  ASSERT_TRUE(cluster_->WaitForWorkers(1));
  for (const absl::Status& end : Calls()) {
    EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition) << end;
    EXPECT_THAT(std::string(end.message()),
                AllOf(HasSubstr(Digest(kModel)), HasSubstr("and they have none")));
  }
  EXPECT_FALSE(Ready());
}

}  // namespace
}  // namespace lockstep
