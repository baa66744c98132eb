// A cluster whose services and clients know each other by certificates and tokens.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kTrainerToken[] = "token-of-the-trainer";
constexpr char kOperatorToken[] = "token-of-the-operator";

std::string MakeDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "lockstep-security-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

v1::GenerateRequest Request() {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(7);
  request.mutable_stop()->set_max_new_tokens(4);
  return request;
}

class SecureClusterTest : public ::testing::Test {
 protected:
  SecureClusterTest() {
    IssueAll();
    std::filesystem::create_directory(directory_ + "/tokens");
    std::ofstream(directory_ + "/tokens/trainer") << kTrainerToken;
    std::ofstream(directory_ + "/tokens/operator") << kOperatorToken;
    cluster_ = std::make_unique<ClusterHarness>(ClusterHarness::Options{
        .workers = 1,
        .tls_directory = directory_,
        .tokens_directory = directory_ + "/tokens",
    });
  }
  ~SecureClusterTest() override {
    cluster_.reset();
    std::filesystem::remove_all(directory_);
  }
  void SetUp() override {
    const absl::Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started;
  }

  void IssueAll() {
    for (const char* name : {"gateway", "router", "scheduler", "worker", "trainer"}) {
      authority_.Issue(name, name);
    }
  }
  std::unique_ptr<v1::RolloutService::StubInterface> ClientWith(const std::string& token) const {
    return v1::RolloutService::NewStub(
        rpc::MakeChannel(cluster_->gateway_address(),
                         {.security = *rpc::Security::Create({.authorities = authority_.path()}),
                          .peer_name = "gateway",
                          .bearer_token = token}));
  }
  absl::Status Generate(RolloutStub* stub) {
    return CallNow(stub, &RolloutStub::Generate, Request()).status();
  }

  const std::string directory_ = MakeDirectory();
  CertificateAuthority authority_{directory_};
  std::unique_ptr<ClusterHarness> cluster_;
};

TEST_F(SecureClusterTest, ServesWhoHasACertificateOrAToken) {
  EXPECT_TRUE(Generate(cluster_->stub()).ok());
  EXPECT_TRUE(Generate(ClientWith(kTrainerToken).get()).ok());
  EXPECT_TRUE(Generate(ClientWith(kOperatorToken).get()).ok());
  EXPECT_EQ(Generate(ClientWith("").get()).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Generate(ClientWith("token-of-nobody-here").get()).code(),
            absl::StatusCode::kUnauthenticated);
  const auto plaintext = v1::RolloutService::NewStub(rpc::MakeChannel(cluster_->gateway_address()));
  EXPECT_EQ(Generate(plaintext.get()).code(), absl::StatusCode::kUnavailable);
}

// Before any handler, so by access control itself; what fails in TLS is no call yet.
TEST_F(SecureClusterTest, RefusedCallsAreCountedByTheirCode) {
  const auto counted = [&](const char* code) {
    return cluster_->GatewayMetric(
        absl::StrCat("lockstep_gateway_requests_total{code=\"", code, "\"}"));
  };
  for (const char* token : {"", "token-of-nobody-here"}) {
    EXPECT_FALSE(Generate(ClientWith(token).get()).ok());
    EXPECT_FALSE(CallNow(ClientWith(token).get(), &RolloutStub::GetServerInfo, {}).ok());
  }
  EXPECT_EQ(counted("unauthenticated"), 4);
  EXPECT_EQ(counted("permission_denied"), 0);
  const auto trainer = ClientWith(kTrainerToken);
  EXPECT_FALSE(CallNow(trainer.get(), &RolloutStub::Pause, {}).ok());
  EXPECT_FALSE(CallNow(trainer.get(), &RolloutStub::GetWeights, {}).ok());
  EXPECT_FALSE(CallNow(trainer.get(), &RolloutStub::SetWeightVersion, {}).ok());
  EXPECT_EQ(counted("permission_denied"), 2) << "GetWeights is everybody's, and not served";
  EXPECT_EQ(counted("ok"), 0);
}

TEST_F(SecureClusterTest, WhatConcernsEverybodyIsAnOperators) {
  const auto trainer = ClientWith(kTrainerToken);
  const absl::Status refused = CallNow(trainer.get(), &RolloutStub::Pause, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("needs the role operator"));
  EXPECT_EQ(CallNow(trainer.get(), &RolloutStub::FlushCache, {}).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Generate(trainer.get()).ok());

  const auto operators = ClientWith(kOperatorToken);
  EXPECT_TRUE(CallNow(operators.get(), &RolloutStub::Pause, {}).ok());
  EXPECT_TRUE(CallNow(operators.get(), &RolloutStub::Resume, {}).ok());
  EXPECT_TRUE(CallNow(operators.get(), &RolloutStub::FlushCache, {}).ok());
}

// A trainer's certificate is good, but workers take calls of routers and the scheduler alone.
TEST_F(SecureClusterTest, AClientCannotCallAWorker) {
  const auto stub = v1::WorkerService::NewStub(rpc::MakeChannel(
      cluster_->worker_address(0),
      {.security = *rpc::Security::Create({.certificate = authority_.certificate("trainer"),
                                           .key = authority_.key("trainer"),
                                           .authorities = authority_.path()}),
       .peer_name = "worker"}));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  v1::ControlResponse response;
  const grpc::Status status = stub->Control(&context, v1::ControlRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
}

TEST_F(SecureClusterTest, CertificatesAreReplacedWhileItServes) {
  ASSERT_TRUE(Generate(cluster_->stub()).ok());
  IssueAll();
  // What reconnects meets peers with old and with new certificates; one authority signed both.
  cluster_->StopRouter();
  ASSERT_TRUE(cluster_->StartRouter().ok());
  cluster_->StopWorker(0);
  ASSERT_TRUE(cluster_->StartWorker(0).ok());
  EXPECT_TRUE(Generate(cluster_->stub()).ok());
}

}  // namespace
}  // namespace lockstep::testing
