// What a dry run tells: whether requests fit at all, and what they would take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::CallNow;
using ::testing::HasSubstr;
using testing::RolloutStub;
using testing::SharedClusterTest;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class EstimateTest : public SharedClusterTest<EstimateTest> {};

TEST_F(EstimateTest, TellsWhatFitsAndWhatItTakes) {
  const auto info = CallNow(stub(), &RolloutStub::GetServerInfo, {});
  ASSERT_TRUE(info.ok()) << info.status();
  const int64_t block = info->fingerprint().kv_block_tokens();
  v1::EstimateRequest request;
  v1::GenerateRequest* group = request.add_requests();
  for (int64_t i = 0; i < 2 * block + 1; ++i) group->mutable_prompt_ids()->add_ids(16);
  group->set_n(3);
  group->mutable_stop()->set_max_new_tokens(block);
  const double before = cluster_->GatewayMetric("lockstep_gateway_samples_total");
  const auto estimate = CallNow(stub(), &RolloutStub::Estimate, request);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_TRUE(estimate->fits());
  EXPECT_EQ(estimate->prompt_tokens(), 2 * block + 1);
  EXPECT_EQ(estimate->generated_tokens_max(), 3 * block);
  // Two whole blocks of the prompt are shared; each sample has what begins in the third.
  EXPECT_EQ(estimate->kv_blocks_max(), 2 + 3 * 2);
  int64_t blocks = 0;
  for (const v1::WorkerInfo& worker : info->workers()) blocks += worker.kv_blocks();
  EXPECT_EQ(estimate->kv_blocks_cluster(), blocks);
  EXPECT_EQ(cluster_->GatewayMetric("lockstep_gateway_samples_total"), before);
  request.mutable_requests(0)->mutable_sampling()->set_top_p(2);
  EXPECT_THAT(Message(CallNow(stub(), &RolloutStub::Estimate, request).status()),
              HasSubstr("requests[0].sampling.top_p: 2"));
}

TEST_F(EstimateTest, NamesTheFirstRequestThatFitsNoEmptyWorkerAndTheLimit) {
  const auto info = CallNow(stub(), &RolloutStub::GetServerInfo, {});
  ASSERT_TRUE(info.ok()) << info.status();
  const int64_t context = info->context_tokens_max();
  v1::EstimateRequest request;
  request.add_requests()->mutable_prompt_ids()->add_ids(16);
  request.mutable_requests(0)->mutable_stop()->set_max_new_tokens(1);
  const auto expect_misfit = [&](const std::string& what) {
    const auto estimate = CallNow(stub(), &RolloutStub::Estimate, request);
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    EXPECT_FALSE(estimate->fits());
    EXPECT_THAT(estimate->misfit(), HasSubstr(what));
    EXPECT_GT(estimate->kv_blocks_max(), 0);
    // The same request would be refused, with the same words.
    const auto answer = CallNow(stub(), &RolloutStub::Generate, request.requests(1));
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(answer.status()), HasSubstr(what.substr(what.find('.') + 1)));
  };
  v1::GenerateRequest* large = request.add_requests();
  for (int64_t i = 0; i < context + 1; ++i) large->mutable_prompt_ids()->add_ids(16);
  expect_misfit(
      absl::StrCat("requests[1].prompt: ", context + 1, " tokens, the context holds ", context));
  large->clear_prompt_ids();
  large->mutable_prompt_ids()->add_ids(16);
  large->mutable_stop()->set_max_new_tokens(context);
  expect_misfit(absl::StrCat("requests[1].stop.max_new_tokens: ", context));
  // Beyond what could be added to anything.
  large->mutable_stop()->set_max_new_tokens(std::numeric_limits<int64_t>::max());
  expect_misfit(absl::StrCat("requests[1].stop.max_new_tokens: ",
                             std::numeric_limits<int64_t>::max(), " is outside [0, ", context - 1));
  // It could run, but its answer could not be sent.
  large->mutable_stop()->set_max_new_tokens(1000);
  large->mutable_stop()->set_ignore_eos(true);
  large->set_n(1024);
  for (int i = 0; i < 1024; ++i) large->mutable_logprobs()->add_chosen_ids(0);
  expect_misfit("requests[1].n, stop and logprobs: the answer has at least ");
  // What is wrong besides is an error still.
  large->mutable_sampling()->set_top_p(2);
  EXPECT_THAT(Message(CallNow(stub(), &RolloutStub::Estimate, request).status()),
              HasSubstr("requests[1].sampling.top_p: 2"));
}

TEST_F(EstimateTest, TokensThatAreThereTakeNoTime) {
  v1::EstimateRequest fresh;
  v1::GenerateRequest* request = fresh.add_requests();
  request->mutable_prompt_ids()->add_ids(16);
  request->mutable_stop()->set_max_new_tokens(100);
  v1::EstimateRequest resumed = fresh;
  for (int i = 0; i < 100; ++i) resumed.mutable_requests(0)->add_generated_ids(16);
  // The throughput is known soon after something ran.
  absl::StatusOr<v1::EstimateResponse> estimate;
  ASSERT_TRUE(testing::ClusterHarness::WaitUntil(
      [&] {
        EXPECT_TRUE(CallNow(stub(), &RolloutStub::Generate, fresh.requests(0)).ok());
        estimate = CallNow(stub(), &RolloutStub::Estimate, fresh);
        return !estimate.ok() || estimate->expected_seconds() > 0;
      },
      absl::Seconds(30)));
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  estimate = CallNow(stub(), &RolloutStub::Estimate, resumed);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_EQ(estimate->expected_seconds(), 0);
  EXPECT_EQ(estimate->generated_tokens_max(), 100);
}

TEST_F(EstimateTest, SumsBeyondTheLargestNumberStayThere) {
  v1::GenerateRequest large;
  large.mutable_prompt_ids()->add_ids(16);
  large.set_n(1024);
  large.mutable_stop()->set_max_new_tokens(std::numeric_limits<int64_t>::max());
  v1::EstimateRequest request;
  for (int i = 0; i < 3; ++i) *request.add_requests() = large;
  const auto estimate = CallNow(stub(), &RolloutStub::Estimate, request);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_FALSE(estimate->fits());
  EXPECT_EQ(estimate->generated_tokens_max(), std::numeric_limits<int64_t>::max());
  EXPECT_GE(estimate->expected_seconds(), 0);
}

}  // namespace
}  // namespace lockstep
