#include "services/client/whole_answer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/packed_array.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/client/arrays.h"

namespace lockstep::client {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Of tokens 100, 101, …; the last `unscored` have no logprobs.
v1::Sample SampleOf(int64_t tokens, v1::FinishReason reason, int64_t unscored = 0) {
  v1::Sample sample;
  std::vector<uint32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(100 + static_cast<uint32_t>(i));
  sample.set_token_ids(base::PackArray(ids));
  sample.mutable_logprobs()->set_raw(
      base::PackArray(std::vector<float>(static_cast<size_t>(tokens - unscored), -1)));
  sample.set_unscored_tokens(unscored);
  sample.set_text(std::string(static_cast<size_t>(tokens), 'x'));
  sample.set_finish_reason(reason);
  sample.mutable_usage()->set_generated_tokens(tokens);
  if (unscored == 0) {
    sample.mutable_receipt()->set_digest("proof");
    sample.mutable_receipt()->add_weights_digests("old");
  }
  return sample;
}

v1::GenerateResponse AnswerOf(std::vector<v1::Sample> samples) {
  v1::GenerateResponse answer;
  answer.set_prompt_ids(base::PackArray<uint32_t>({7, 8, 9}));
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].set_index(samples[i].index() + static_cast<int64_t>(i));
    *answer.add_samples() = std::move(samples[i]);
  }
  return answer;
}

v1::Sample WithPrompt(v1::Sample sample, int positions) {
  sample.mutable_prompt_logprobs()->set_raw(
      base::PackArray(std::vector<float>(static_cast<size_t>(positions), -2)));
  return sample;
}

bool Take(WholeAnswer* answer, v1::GenerateResponse next) {
  const auto whole = answer->Take(std::move(next));
  EXPECT_TRUE(whole.ok()) << whole.status();
  return whole.ok() && *whole;
}

void ExpectTokens(const v1::Sample& sample, int64_t tokens, v1::FinishReason reason) {
  EXPECT_EQ(sample.finish_reason(), reason);
  EXPECT_EQ(base::PackedCount(sample.token_ids()), tokens);
  EXPECT_EQ(base::PackedCount(sample.logprobs().raw()), tokens);
  EXPECT_EQ(sample.unscored_tokens(), 0);
  EXPECT_THAT(sample.text(), SizeIs(tokens));
  EXPECT_EQ(sample.usage().generated_tokens(), tokens);
  EXPECT_EQ(sample.receipt().digest(), "proof");
}

TEST(WholeAnswerTest, AContinuationThatEndsBeforeAllWasComputedAgainKeepsTheFirstAnswers) {
  const v1::GenerateRequest request;
  // None computed again, some, or all; and one of a gateway that gives back only what was.
  for (const v1::Sample& continued :
       {SampleOf(4, v1::FINISH_REASON_ABORT, 4), SampleOf(4, v1::FINISH_REASON_ABORT, 1),
        SampleOf(4, v1::FINISH_REASON_ABORT), SampleOf(1, v1::FINISH_REASON_ABORT)}) {
    WholeAnswer answer(&request);
    EXPECT_FALSE(Take(&answer, AnswerOf({SampleOf(4, v1::FINISH_REASON_PARTIAL)})));
    EXPECT_TRUE(Take(&answer, AnswerOf({continued})));
    const auto response = answer.Finish();
    ASSERT_TRUE(response.ok()) << response.status();
    ExpectTokens(response->samples(0), 4, v1::FINISH_REASON_ABORT);
  }
}

TEST(WholeAnswerTest, OfAPartialThatWasUnscoredTheContinuationKnowsMore) {
  const v1::GenerateRequest request;
  WholeAnswer answer(&request);
  EXPECT_FALSE(Take(&answer, AnswerOf({SampleOf(4, v1::FINISH_REASON_PARTIAL, 4)})));
  EXPECT_EQ(answer.next().generated_ids_size(), 4);
  EXPECT_FALSE(Take(&answer, AnswerOf({SampleOf(4, v1::FINISH_REASON_PARTIAL, 1)})));
  EXPECT_TRUE(Take(&answer, AnswerOf({SampleOf(6, v1::FINISH_REASON_LENGTH)})));
  ExpectTokens(answer.Finish()->samples(0), 6, v1::FINISH_REASON_LENGTH);
}

TEST(WholeAnswerTest, AContinuationThatFailsLeavesThePartialsWithItsError) {
  const v1::GenerateRequest request;
  WholeAnswer answer(&request);
  EXPECT_EQ(answer.Finish(absl::UnavailableError("nobody")).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Take(&answer, AnswerOf({SampleOf(6, v1::FINISH_REASON_LENGTH),
                                       SampleOf(4, v1::FINISH_REASON_PARTIAL),
                                       SampleOf(2, v1::FINISH_REASON_PARTIAL)})));
  const auto response = answer.Finish(absl::UnavailableError("nobody"));
  ASSERT_TRUE(response.ok()) << response.status();
  ExpectTokens(response->samples(0), 6, v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(response->samples(0).has_error());
  ExpectTokens(response->samples(1), 4, v1::FINISH_REASON_PARTIAL);
  ExpectTokens(response->samples(2), 2, v1::FINISH_REASON_PARTIAL);
  EXPECT_EQ(response->samples(1).error().message(), "nobody");
  EXPECT_EQ(response->samples(2).error().message(), "nobody");
}

TEST(WholeAnswerTest, OfWhatWasGivenUpForOtherWeightsAndWhatCameAfterTheLongerStays) {
  const v1::GenerateRequest request;
  v1::Sample other = SampleOf(5, v1::FINISH_REASON_ABORT);
  other.mutable_receipt()->set_weights_digests(0, "new");
  const auto given_up = [&] {
    auto answer = std::make_unique<WholeAnswer>(&request);
    EXPECT_FALSE(Take(answer.get(), AnswerOf({SampleOf(4, v1::FINISH_REASON_PARTIAL)})));
    EXPECT_FALSE(Take(answer.get(), AnswerOf({other})));
    EXPECT_EQ(answer->next().generated_ids_size(), 0);
    return answer;
  };
  // Nothing came, something shorter that was cut short too, something longer, or all of it.
  auto answer = given_up();
  ExpectTokens(answer->Finish(absl::UnavailableError("nobody"))->samples(0), 4,
               v1::FINISH_REASON_PARTIAL);
  answer = given_up();
  EXPECT_TRUE(Take(answer.get(), AnswerOf({SampleOf(3, v1::FINISH_REASON_ABORT)})));
  ExpectTokens(answer->Finish()->samples(0), 4, v1::FINISH_REASON_PARTIAL);
  answer = given_up();
  EXPECT_TRUE(Take(answer.get(), AnswerOf({SampleOf(5, v1::FINISH_REASON_ABORT)})));
  ExpectTokens(answer->Finish()->samples(0), 5, v1::FINISH_REASON_ABORT);
  answer = given_up();
  EXPECT_TRUE(Take(answer.get(), AnswerOf({SampleOf(3, v1::FINISH_REASON_STOP)})));
  ExpectTokens(answer->Finish()->samples(0), 3, v1::FINISH_REASON_STOP);
}

TEST(WholeAnswerTest, AsksForPromptLogprobsOnlyWhereTheFirstSampleLacksSome) {
  v1::GenerateRequest request;
  request.mutable_logprobs()->set_prompt_from(1);
  const v1::Sample partial = SampleOf(2, v1::FINISH_REASON_PARTIAL);
  const v1::Sample end = SampleOf(4, v1::FINISH_REASON_LENGTH);
  for (const int had : {0, 1, 2}) {
    WholeAnswer answer(&request);
    EXPECT_FALSE(Take(&answer, AnswerOf({WithPrompt(partial, had), partial})));
    EXPECT_EQ(answer.next().logprobs().has_prompt_from(), had < 2);
    EXPECT_FALSE(Take(&answer, AnswerOf({had < 2 ? WithPrompt(end, 2) : end})));
    EXPECT_FALSE(answer.next().logprobs().has_prompt_from());
    EXPECT_TRUE(Take(&answer, AnswerOf({end})));
    const auto response = answer.Finish();
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_THAT(ReadFloats(response->samples(0).prompt_logprobs().raw()), ElementsAre(-2, -2));
    EXPECT_TRUE(response->samples(1).prompt_logprobs().raw().empty());
  }
}

}  // namespace
}  // namespace lockstep::client
