// A request that carries a trace id can be followed through the logs of all processes.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rpc/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lockstep/v1/rollout.grpc.pb.h"
#include "services/cli/files.h"
#include "services/cli/wait_until.h"
#include "tests/process/local_cluster.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = LocalCluster::Start({"--model=null:"});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }

  grpc::Status Generate(const v1::GenerateRequest& request, const std::string& trace_id) {
    grpc::ClientContext context;
    rpc::ApplyScope({.deadline = absl::Now() + absl::Seconds(60), .trace_id = trace_id}, &context);
    v1::GenerateResponse response;
    const auto stub = v1::RolloutService::NewStub(cluster_->client().channel());
    return stub->Generate(&context, request, &response);
  }

  // Lines of these processes' logs that contain `word`: what grep prints.
  std::vector<std::string> Grep(const std::string& word, const std::vector<std::string>& members) {
    std::vector<std::string> found;
    for (const std::string& member : members) {
      const std::string path = absl::StrCat(cluster_->run_dir(), "/", member, ".log");
      const std::string text = cli::ReadFile(path).value_or("");
      for (std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
        if (line.find(word) != std::string::npos) found.push_back(std::move(line));
      }
    }
    return found;
  }

  std::unique_ptr<LocalCluster> cluster_;
};

v1::GenerateRequest Request(const std::string& request_id) {
  v1::GenerateRequest request;
  request.set_request_id(request_id);
  request.mutable_prompt_ids()->add_ids(1);
  request.mutable_stop()->set_max_new_tokens(3);
  return request;
}

TEST_F(TraceTest, ATraceIdShowsItsRequestInTheLogsOfFourProcesses) {
  ASSERT_TRUE(Generate(Request("unseen"), "").ok());
  ASSERT_TRUE(Generate(Request("seen"), "run-7/step-3").ok());
  const std::string word = "trace_id=run-7/step-3";
  // The gateway's last line comes with its next sweep.
  EXPECT_TRUE(
      cli::WaitUntil([&] { return Grep(word, {"gateway"}).size() == 2; }, absl::Seconds(10)));
  EXPECT_THAT(Grep(word, {"gateway"}), Contains(HasSubstr("request_accepted")));
  EXPECT_THAT(Grep(word, {"gateway"}), Contains(HasSubstr("request_ended")));
  // The router reports sequences that started with a ticket granted ahead a little later.
  EXPECT_TRUE(
      cli::WaitUntil([&] { return !Grep(word, {"scheduler"}).empty(); }, absl::Seconds(10)));
  EXPECT_THAT(Grep(word, {"scheduler"}), Contains(HasSubstr("sequence_admitted")));
  EXPECT_THAT(Grep(word, {"router"}), Contains(HasSubstr("sequence_starts")));
  EXPECT_THAT(Grep(word, {"router"}), Contains(HasSubstr("sequence_ended")));
  const std::vector<std::string> workers = {"worker-0", "worker-1"};
  EXPECT_THAT(Grep(word, workers), Contains(HasSubstr("sequence_starts")));
  EXPECT_THAT(Grep(word, workers), Contains(HasSubstr("sequence_ended")));
  // Thousands of requests a second must not fill the logs.
  EXPECT_THAT(Grep("unseen", {"gateway", "scheduler", "router", "worker-0", "worker-1"}),
              IsEmpty());
}

TEST_F(TraceTest, ARefusalIsLoggedWithItsReason) {
  v1::GenerateRequest request = Request("refused");
  request.mutable_sampling()->set_top_p(2);
  EXPECT_FALSE(Generate(request, "run-7/step-4").ok());
  EXPECT_THAT(Grep("trace_id=run-7/step-4", {"gateway"}), Contains(HasSubstr("sampling.top_p: 2")));
}

}  // namespace
}  // namespace lockstep::testing
