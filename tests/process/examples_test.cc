// The first requests that the README shows, run as it shows them.
#include <filesystem>

#include "absl/strings/str_cat.h"
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

  std::unique_ptr<LocalCluster> cluster_;
  v1::GenerateResponse expected_;
};

TEST_F(ExamplesTest, CppClientPrintsTheAnswer) {
  ExpectShows(RunProgram(EXAMPLE_BINARY, {cluster_->target(), "12+34*2="}));
}

TEST_F(ExamplesTest, PythonClientPrintsTheAnswer) {
  // The commands in the head of the example.
  const std::string stubs = cluster_->run_dir() + "/python";
  ExpectShows(RunProgram(
      "/bin/sh",
      {"-ec", absl::StrCat("mkdir -p ", stubs, "; protoc -Iproto --python_out=", stubs,
                           " --grpc_out=", stubs,
                           " --plugin=protoc-gen-grpc=\"$(command -v grpc_python_plugin)\" "
                           "lockstep/v1/types.proto lockstep/v1/rollout.proto; PYTHONPATH=",
                           stubs, " /usr/bin/python3 deploy/examples/generate.py ",
                           cluster_->target(), " '12+34*2='")}));
}

}  // namespace
}  // namespace lockstep::testing
