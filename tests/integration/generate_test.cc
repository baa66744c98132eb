// The whole cluster in one process: a request goes in, its samples come out, and nothing around it
// moves a bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::SharedClusterTest;

absl::StatusOr<v1::GenerateResponse> Generate(testing::RolloutStub* stub,
                                              const v1::GenerateRequest& request) {
  return testing::GenerateAll(stub, {request})[0];
}

v1::GenerateRequest Arithmetic(const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_prompt_text(prompt);
  request.set_seed(7);
  request.mutable_stop()->set_max_new_tokens(48);
  return request;
}

class GenerateTest : public SharedClusterTest<GenerateTest> {};

TEST_F(GenerateTest, AnswersWithTokensLogprobsTextAndReceipt) {
  const auto response = Generate(stub(), Arithmetic("12+34*2="));
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->samples_size(), 1);
  const v1::Sample& sample = response->samples(0);
  EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_THAT(sample.text(), ::testing::HasSubstr("answer"));
  const size_t tokens = sample.token_ids().size() / 4;
  EXPECT_EQ(sample.logprobs().raw().size(), 4 * tokens);
  EXPECT_EQ(sample.logprobs().scaled().size(), 4 * tokens);
  ASSERT_EQ(sample.weight_versions_size(), 1);
  EXPECT_EQ(sample.weight_versions(0).count(), static_cast<int64_t>(tokens));
  EXPECT_EQ(sample.receipt().digest().size(), 32u);
  EXPECT_EQ(sample.usage().prompt_tokens(), 8);
}

TEST_F(GenerateTest, SamplesOfAGroupDifferAndReplayAloneFromTheirSubSeed) {
  v1::GenerateRequest request = Arithmetic("56*7-31=");
  request.set_n(8);
  const auto response = Generate(stub(), request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->samples_size(), 8);
  for (const v1::Sample& sample : response->samples()) {
    v1::GenerateRequest alone = Arithmetic("56*7-31=");
    alone.set_exact_seed(sample.sub_seed());
    alone.set_first_sample_index(sample.index());
    const auto replay = Generate(stub(), alone);
    ASSERT_TRUE(replay.ok()) << replay.status();
    EXPECT_EQ(Bits(replay->samples(0)), Bits(sample)) << sample.index();
  }
}

TEST_F(GenerateTest, ScoringOwnOutputGivesTheSameLogprobBits) {
  v1::GenerateRequest request = Arithmetic("98-7*12=");
  request.mutable_sampling()->set_temperature(0.5);
  const auto response = Generate(stub(), request);
  ASSERT_TRUE(response.ok()) << response.status();
  v1::ScoreRequest score;
  const auto append = [&score](const std::string& ids) {
    for (size_t i = 0; i < ids.size(); i += 4) {
      uint32_t id;
      std::memcpy(&id, ids.data() + i, 4);
      score.add_ids(id);
    }
  };
  append(response->prompt_ids());
  score.set_from(score.ids_size());
  append(response->samples(0).token_ids());
  score.set_temperature(0.5);
  grpc::ClientContext context;
  v1::ScoreResponse scored;
  const grpc::Status status = stub()->Score(&context, score, &scored);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(scored.logprobs().raw(), response->samples(0).logprobs().raw());
  EXPECT_EQ(scored.logprobs().scaled(), response->samples(0).logprobs().scaled());
}

TEST_F(GenerateTest, StreamedPiecesMakeTheUnaryAnswer) {
  v1::GenerateRequest request = Arithmetic("Tell me a story:");
  request.mutable_stop()->set_max_new_tokens(700);
  request.set_n(2);
  const auto whole = Generate(stub(), request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  grpc::ClientContext context;
  auto stream = stub()->GenerateStream(&context, request);
  std::vector<std::string> ids(2), raw(2), text(2);
  std::vector<int> finished(2);
  v1::GenerateDelta delta;
  while (stream->Read(&delta)) {
    ids[delta.index()] += delta.token_ids();
    raw[delta.index()] += delta.logprobs().raw();
    text[delta.index()] += delta.text();
    finished[delta.index()] += delta.has_finished();
  }
  ASSERT_TRUE(stream->Finish().ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ids[i], whole->samples(i).token_ids());
    EXPECT_EQ(raw[i], whole->samples(i).logprobs().raw());
    EXPECT_EQ(text[i], whole->samples(i).text());
    EXPECT_EQ(finished[i], 1);
  }
}

TEST_F(GenerateTest, ManyAnswersEveryItemOverOneStream) {
  grpc::ClientContext context;
  auto stream = stub()->GenerateMany(&context);
  for (int i = 0; i < 20; ++i) {
    v1::GenerateManyRequest item;
    *item.mutable_generate() = Arithmetic(absl::StrCat(i, "+34*2="));
    item.mutable_generate()->set_request_id(absl::StrCat("item-", i));
    if (i == 13) item.mutable_generate()->mutable_sampling()->set_temperature(-1);
    ASSERT_TRUE(stream->Write(item));
  }
  stream->WritesDone();
  int answers = 0, errors = 0;
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
    answers += response.has_response();
    if (response.has_error()) {
      ++errors;
      EXPECT_EQ(response.request_id(), "item-13");
      EXPECT_THAT(response.error().message(), ::testing::HasSubstr("sampling.temperature: -1"));
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answers, 19);
  EXPECT_EQ(errors, 1);
}

TEST_F(GenerateTest, WhatIsNotServedAnswersUnimplementedAndItsErrorHasDetails) {
  const auto code = [](const auto& response) { return response.status().code(); };
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(code(testing::CallNow(stub(), &testing::RolloutStub::GetWeights, {})), kUnimplemented);
  EXPECT_EQ(code(testing::CallNow(stub(), &testing::RolloutStub::SetWeightVersion, {})),
            kUnimplemented);
  EXPECT_EQ(code(testing::CallNow(stub(), &testing::RolloutStub::ReleaseMemory, {})),
            kUnimplemented);
  EXPECT_EQ(code(testing::CallNow(stub(), &testing::RolloutStub::ResumeMemory, {})),
            kUnimplemented);
  EXPECT_EQ(code(testing::CallNow(stub(), &testing::RolloutStub::Replay, {})), kUnimplemented);
  grpc::ClientContext context;
  v1::UpdateWeightsResponse updated;
  auto update = stub()->UpdateWeights(&context, &updated);
  update->WritesDone();
  const grpc::Status refused = update->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNIMPLEMENTED);

  // With details, as every other error has them.
  v1::ErrorDetail detail;
  ASSERT_TRUE(detail.ParseFromString(refused.error_details()));
  EXPECT_EQ(detail.code(), static_cast<int>(kUnimplemented));
  EXPECT_EQ(detail.message(), refused.error_message());
  EXPECT_THAT(detail.message(), ::testing::HasSubstr("UpdateWeights"));
  EXPECT_FALSE(detail.retryable());
  EXPECT_THAT(
      std::string(
          testing::CallNow(stub(), &testing::RolloutStub::GetWeights, {}).status().message()),
      ::testing::HasSubstr("GetWeights"));
}

}  // namespace
}  // namespace lockstep
