#include "services/cli/replay_sample.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/client/arrays.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;

// The first `count` tokens of one and the same answer.
v1::Sample SampleOf(uint32_t count, v1::FinishReason reason) {
  std::vector<uint32_t> ids;
  std::vector<uint32_t> top;
  std::vector<float> raw;
  v1::Sample sample;
  for (uint32_t i = 0; i < count; ++i) {
    ids.push_back(100 + i);
    raw.push_back(-0.5f - static_cast<float>(i));
    top.insert(top.end(), {100 + i, 7});
    sample.mutable_text()->push_back(static_cast<char>('a' + i));
  }
  sample.set_token_ids(base::PackArray(ids));
  sample.mutable_logprobs()->set_raw(base::PackArray(raw));
  sample.mutable_logprobs()->set_top_ids(base::PackArray(top));
  sample.set_finish_reason(reason);
  sample.mutable_receipt()->set_digest(std::to_string(count));
  return sample;
}

v1::GenerateResponse AnswerOf(const v1::Sample& sample) {
  v1::GenerateResponse answer;
  *answer.add_samples() = sample;
  return answer;
}

TEST(ReplaySampleTest, ComparesAWholeSampleWithItsReceipt) {
  const v1::Sample whole = SampleOf(5, v1::FINISH_REASON_STOP);
  const Replayed same = CompareReplay(whole, AnswerOf(whole)).value();
  EXPECT_TRUE(same.held());
  EXPECT_EQ(same.Text(), "equal in every bit; receipt equal");
  EXPECT_EQ(same.positions, 5);

  v1::Sample other = whole;
  other.mutable_receipt()->set_digest("other");
  EXPECT_FALSE(CompareReplay(whole, AnswerOf(other)).value().held());
  EXPECT_FALSE(CompareReplay(whole, AnswerOf(SampleOf(4, v1::FINISH_REASON_STOP))).value().held());
}

TEST(ReplaySampleTest, AsksForAsMuchOfACutSampleAsThereWas) {
  Record record;
  record.request.mutable_stop()->set_max_new_tokens(8000);
  record.request.mutable_stop()->set_min_new_tokens(60);
  v1::Sample cut = SampleOf(5, v1::FINISH_REASON_ABORT);
  cut.set_sub_seed(9);
  const v1::GenerateRequest request = ReplayRequest(record, cut);
  EXPECT_EQ(request.stop().max_new_tokens(), 5);
  EXPECT_EQ(request.stop().min_new_tokens(), 5);
  EXPECT_EQ(request.exact_seed(), 9u);

  const v1::GenerateRequest whole = ReplayRequest(record, SampleOf(5, v1::FINISH_REASON_STOP));
  EXPECT_EQ(whole.stop().max_new_tokens(), 8000);
  EXPECT_EQ(whole.stop().min_new_tokens(), 60);
}

TEST(ReplaySampleTest, ACutSampleIsAPrefixAndComparedInEveryBit) {
  for (const v1::FinishReason reason :
       {v1::FINISH_REASON_ABORT, v1::FINISH_REASON_PARTIAL, v1::FINISH_REASON_ERROR}) {
    const v1::Sample cut = SampleOf(5, reason);
    v1::Sample again = SampleOf(5, v1::FINISH_REASON_LENGTH);
    again.mutable_receipt()->set_digest("of other parameters");
    const Replayed replayed = CompareReplay(cut, AnswerOf(again)).value();
    EXPECT_TRUE(replayed.held()) << replayed.Text();
    EXPECT_THAT(replayed.Text(), HasSubstr("was cut short; its 5 positions are equal"));

    std::vector<float> raw = client::ReadFloats(again.logprobs().raw());
    raw[4] = -4.5000005f;
    again.mutable_logprobs()->set_raw(base::PackArray(raw));
    const Replayed altered = CompareReplay(cut, AnswerOf(again)).value();
    EXPECT_FALSE(altered.held());
    EXPECT_THAT(altered.Text(), HasSubstr("raw logprobs differ at position 4"));
  }
}

TEST(ReplaySampleTest, TokensWithoutLogprobsAreComparedAsTokens) {
  v1::Sample cut = SampleOf(3, v1::FINISH_REASON_ABORT);
  const v1::Sample again = SampleOf(5, v1::FINISH_REASON_LENGTH);
  // Of five ids two were given, and not yet computed again.
  cut.set_token_ids(again.token_ids());
  cut.set_text(again.text());
  cut.set_unscored_tokens(2);
  EXPECT_TRUE(CompareReplay(cut, AnswerOf(again)).value().held());
}

// A record is a file, which may say anything.
TEST(ReplaySampleTest, CountsThatCannotBeAreDifferences) {
  v1::Sample cut = SampleOf(3, v1::FINISH_REASON_ABORT);
  for (const int64_t unscored :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), int64_t{4}}) {
    cut.set_unscored_tokens(unscored);
    const auto replayed = CompareReplay(cut, AnswerOf(SampleOf(3, v1::FINISH_REASON_LENGTH)));
    EXPECT_EQ(replayed->held(), unscored < 0);
  }
  v1::Sample nothing = SampleOf(0, v1::FINISH_REASON_ABORT);
  nothing.set_unscored_tokens(1);
  EXPECT_FALSE(
      CompareReplay(nothing, AnswerOf(SampleOf(0, v1::FINISH_REASON_LENGTH))).value().held());
}

TEST(ReplaySampleTest, WithoutAPositionNothingIsProved) {
  const v1::Sample nothing = SampleOf(0, v1::FINISH_REASON_ABORT);
  const Replayed replayed =
      CompareReplay(nothing, AnswerOf(SampleOf(0, v1::FINISH_REASON_LENGTH))).value();
  EXPECT_FALSE(replayed.held());
  EXPECT_EQ(replayed.difference, std::nullopt);
  EXPECT_THAT(replayed.Text(), HasSubstr("nothing was compared"));
  // Nor where a record's ids were taken out.
  EXPECT_FALSE(CompareReplay(SampleOf(0, v1::FINISH_REASON_STOP),
                             AnswerOf(SampleOf(5, v1::FINISH_REASON_STOP)))
                   .value()
                   .held());
}

TEST(ReplaySampleTest, AReplayThatIsCutItselfSaysNothingAboutBits) {
  EXPECT_EQ(CompareReplay(SampleOf(5, v1::FINISH_REASON_STOP),
                          AnswerOf(SampleOf(3, v1::FINISH_REASON_ABORT)))
                .status()
                .code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(
      CompareReplay(SampleOf(5, v1::FINISH_REASON_STOP), v1::GenerateResponse()).status().code(),
      absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace lockstep::cli
