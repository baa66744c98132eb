// The first requests that the README shows, run as it shows them.
#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/client/arrays.h"
#include "tests/process/local_cluster.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class ExamplesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = LocalCluster::Start();
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    v1::GenerateRequest request;
    request.set_prompt_text("12+34*2=");
    request.set_n(2);
    request.set_seed(1);
    request.mutable_sampling()->set_temperature(0.8f);
    request.mutable_stop()->set_max_new_tokens(48);
    expected_ = cluster_->client().Generate(request).value();
  }
  // Both samples with their receipts, which cover every bit.
  void ExpectShows(const Outcome& outcome) {
    EXPECT_EQ(outcome.ended, "exit code 0") << outcome.output;
    for (const v1::Sample& sample : expected_.samples()) {
      EXPECT_THAT(outcome.output, HasSubstr(sample.text()));
      EXPECT_THAT(outcome.output, HasSubstr(sample.receipt().digest()));
    }
  }
  // The commands in the head of the example.
  Outcome RunPython(const std::string& target) {
    const std::string stubs = cluster_->run_dir() + "/python";
    return RunProgram(
        "/bin/sh",
        {"-ec", absl::StrCat("mkdir -p ", stubs, "; protoc -Iproto --python_out=", stubs,
                             " --grpc_out=", stubs,
                             " --plugin=protoc-gen-grpc=\"$(command -v grpc_python_plugin)\" "
                             "lockstep/v1/types.proto lockstep/v1/rollout.proto; PYTHONPATH=",
                             stubs, " /usr/bin/python3 deploy/examples/generate.py ", target,
                             " '12+34*2='")});
  }

  std::unique_ptr<LocalCluster> cluster_;
  v1::GenerateResponse expected_;
};

TEST_F(ExamplesTest, CppClientPrintsTheAnswer) {
  ExpectShows(RunProgram(EXAMPLE_BINARY, {cluster_->target(), "12+34*2="}));
}

TEST_F(ExamplesTest, PythonClientPrintsTheAnswer) { ExpectShows(RunPython(cluster_->target())); }

// A gateway that refuses what comes first, as while it drains, and then gives a known answer.
class LateGateway final : public v1::RolloutService::CallbackService {
 public:
  LateGateway(std::vector<grpc::StatusCode> refusals, v1::GenerateResponse answer)
      : refusals_(std::move(refusals)), answer_(std::move(answer)) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* /*request*/,
                                     v1::GenerateResponse* response) override {
    auto* reactor = context->DefaultReactor();
    const size_t call = calls_++;
    if (call < refusals_.size()) {
      reactor->Finish({refusals_[call], "not now"});
    } else {
      *response = answer_;
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }
  size_t calls() const { return calls_; }

 private:
  const std::vector<grpc::StatusCode> refusals_;
  const v1::GenerateResponse answer_;
  std::atomic<size_t> calls_ = 0;
};

TEST_F(ExamplesTest, PythonClientAsksAgainWhereAnotherGatewayMayAnswerAndNowhereElse) {
  for (const auto last : {grpc::StatusCode::CANCELLED, grpc::StatusCode::INTERNAL}) {
    LateGateway gateway({grpc::StatusCode::UNAVAILABLE, last}, expected_);
    const auto server = rpc::Server::Start({.address = "127.0.0.1:0"}, {&gateway}).value();
    const Outcome outcome = RunPython(absl::StrCat("127.0.0.1:", server->port()));
    if (last == grpc::StatusCode::CANCELLED) {
      ExpectShows(outcome);
      EXPECT_EQ(gateway.calls(), 3u);
    } else {
      EXPECT_THAT(outcome.output, HasSubstr("StatusCode.INTERNAL"));
      EXPECT_EQ(gateway.calls(), 2u);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
