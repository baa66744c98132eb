#include "services/gateway/answer_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace lockstep::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLimit = 1 << 20;

ModelLimits Limits() {
  ModelLimits limits;
  limits.message_bytes_max = kLimit;
  return limits;
}

// Ends by its length alone. A token is 12 bytes: its id and two logprobs.
ValidRequest Certain(int64_t samples, int64_t tokens) {
  ValidRequest request;
  request.prompt_ids = {1, 2, 3};
  request.n = samples;
  request.effective.mutable_logprobs()->set_generated(true);
  request.effective.mutable_stop()->set_min_new_tokens(0);
  request.effective.mutable_stop()->set_max_new_tokens(tokens);
  return request;
}

ValidRequest Score(int64_t ids, int64_t from, int top_count) {
  ValidRequest request = Certain(1, 0);
  request.score_only = true;
  request.prompt_ids.assign(ids, 1);
  request.prompt_logprobs_from = from;
  request.effective.mutable_logprobs()->set_prompt_details(true);
  request.effective.mutable_logprobs()->set_top_count(top_count);
  return request;
}

bool CanFit(const ValidRequest& request, AnswerForm form) {
  return CheckAnswerCanFit(request, form, Limits()).ok();
}

TEST(AnswerSizeTest, WhatIsCertainToBeTooLargeIsRefusedFromTheFirstByteOn) {
  constexpr int64_t kPromptBytes = 3 * 4;
  const int64_t fits = (kLimit - kPromptBytes) / 12;
  EXPECT_TRUE(CanFit(Certain(1, fits), AnswerForm::kWhole));
  EXPECT_FALSE(CanFit(Certain(1, fits + 1), AnswerForm::kWhole));
  EXPECT_TRUE(CanFit(Certain(64, fits / 64), AnswerForm::kWhole));
  EXPECT_FALSE(CanFit(Certain(64, fits / 64 + 1), AnswerForm::kWhole));
  // Without logprobs a token is its id.
  ValidRequest ids = Certain(1, fits + 1);
  ids.effective.mutable_logprobs()->set_generated(false);
  EXPECT_TRUE(CanFit(ids, AnswerForm::kWhole));
}

TEST(AnswerSizeTest, WhatMayStopEarlyIsNotRefusedForWhatItCouldBecome) {
  ValidRequest by_id = Certain(64, kLimit);
  by_id.effective.mutable_stop()->add_stop_ids(7);
  EXPECT_TRUE(CanFit(by_id, AnswerForm::kWhole));
  ValidRequest by_string = Certain(64, kLimit);
  by_string.effective.mutable_stop()->add_stop_strings("end");
  EXPECT_TRUE(CanFit(by_string, AnswerForm::kWhole));
  by_id.effective.mutable_stop()->set_min_new_tokens(kLimit / 64);
  EXPECT_FALSE(CanFit(by_id, AnswerForm::kWhole));
  by_string.effective.mutable_stop()->set_min_new_tokens(kLimit / 64);
  EXPECT_FALSE(CanFit(by_string, AnswerForm::kWhole));
  // Given tokens are in the answer, whatever follows them.
  ValidRequest resumed = Certain(1, kLimit);
  resumed.effective.mutable_stop()->add_stop_ids(7);
  resumed.generated_ids.assign(kLimit / 12, 1);
  EXPECT_FALSE(CanFit(resumed, AnswerForm::kWhole));
}

TEST(AnswerSizeTest, OnlyWhatHasToStandInOneMessageCounts) {
  const ValidRequest group = Certain(64, kLimit / 12 / 2);
  EXPECT_FALSE(CanFit(group, AnswerForm::kWhole));
  EXPECT_TRUE(CanFit(group, AnswerForm::kBySample));
  const ValidRequest sample = Certain(2, kLimit / 12 + 1);
  EXPECT_FALSE(CanFit(sample, AnswerForm::kBySample));
  EXPECT_TRUE(CanFit(sample, AnswerForm::kAsItComes));
  // The prompt's logprobs are in the first sample.
  ValidRequest prompt = Certain(2, 0);
  prompt.prompt_ids.assign(kLimit / 8 + 2, 1);
  EXPECT_TRUE(CanFit(prompt, AnswerForm::kBySample));
  prompt.prompt_logprobs_from = 1;
  EXPECT_FALSE(CanFit(prompt, AnswerForm::kBySample));
}

TEST(AnswerSizeTest, ScoresAreCountedAsTheyWillBe) {
  constexpr int64_t kPositionBytes = 4 * (2 + 2 * 64);
  const int64_t fits = kLimit / kPositionBytes;
  EXPECT_TRUE(CanFit(Score(5000, 5000 - fits, 64), AnswerForm::kScores));
  EXPECT_FALSE(CanFit(Score(5000, 5000 - fits - 1, 64), AnswerForm::kScores));
}

TEST(AnswerSizeTest, ErrorsNameTheFieldsTheSizeAndTheLimit) {
  const absl::Status whole = CheckAnswerCanFit(Certain(64, 10'000), AnswerForm::kWhole, Limits());
  EXPECT_EQ(whole.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"n, stop and logprobs", "7680012", "server.message_bytes_max is 1048576",
                           "GenerateStream"}) {
    EXPECT_THAT(std::string(whole.message()), HasSubstr(part));
  }
  ValidRequest prompt = Certain(1, 0);
  prompt.prompt_ids.assign(kLimit / 8 + 2, 1);
  prompt.prompt_logprobs_from = 1;
  EXPECT_THAT(std::string(CheckAnswerCanFit(prompt, AnswerForm::kWhole, Limits()).message()),
              HasSubstr("n, stop and logprobs (prompt_from): the answer has at least"));
  const std::string score(
      CheckAnswerCanFit(Score(5000, 1, 64), AnswerForm::kScores, Limits()).message());
  EXPECT_THAT(score, HasSubstr("ids and from: the answer has at least 2599480 bytes"));
  // What Score does not have.
  EXPECT_THAT(score, Not(HasSubstr("GenerateStream")));
  EXPECT_THAT(score, Not(HasSubstr("samples")));
  const absl::Status late = CheckAnswerFits({.samples = {10, kLimit + 1}, .whole = kLimit + 99},
                                            AnswerForm::kBySample, Limits());
  EXPECT_EQ(late.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(late.message()), HasSubstr("a sample has 1048577 bytes"));
}

TEST(AnswerSizeTest, AnswersThatAreThereAreMeasuredInTheirOwnForm) {
  const AnswerBytes bytes = {.samples = {kLimit / 2, kLimit / 2 + 1}, .whole = kLimit + 1};
  EXPECT_FALSE(CheckAnswerFits(bytes, AnswerForm::kWhole, Limits()).ok());
  EXPECT_TRUE(CheckAnswerFits(bytes, AnswerForm::kBySample, Limits()).ok());
  const AnswerBytes large = {.samples = {kLimit + 1}, .whole = kLimit + 2};
  EXPECT_FALSE(CheckAnswerFits(large, AnswerForm::kBySample, Limits()).ok());
  EXPECT_TRUE(CheckAnswerFits(large, AnswerForm::kAsItComes, Limits()).ok());
}

}  // namespace
}  // namespace lockstep::gateway
