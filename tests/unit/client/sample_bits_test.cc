#include "services/client/sample_bits.h"

#include <functional>
#include <vector>

#include "common/base/packed_array.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::client {
namespace {

using ::testing::HasSubstr;

v1::Sample MakeSample() {
  v1::Sample sample;
  sample.set_token_ids(base::PackArray<uint32_t>({5, 6, 7}));
  sample.mutable_logprobs()->set_raw(base::PackArray<float>({-0.5f, -0.25f, 0.0f}));
  sample.mutable_logprobs()->set_scaled(base::PackArray<float>({-1.0f, -0.5f, 0.0f}));
  sample.set_text("abc");
  sample.set_finish_reason(v1::FINISH_REASON_LENGTH);
  return sample;
}

TEST(SampleBitsTest, EveryPromisedFieldChangesTheBits) {
  const std::function<void(v1::Sample*)> changes[] = {
      [](auto* s) {
        s->set_token_ids(base::PackArray<uint32_t>({5, 6, 8}));
      },
      [](auto* s) {
        s->mutable_logprobs()->set_raw(base::PackArray<float>({-0.5f, -0.25f, -0.0f}));
      },
      [](auto* s) {
        s->mutable_logprobs()->set_scaled(base::PackArray<float>({-1.0f, -0.5f, 1e-38f}));
      },
      [](auto* s) { s->mutable_logprobs()->set_entropy(base::PackArray<float>({1})); },
      [](auto* s) { s->mutable_logprobs()->set_top_ids(base::PackArray<uint32_t>({1})); },
      [](auto* s) { s->mutable_logprobs()->set_top_logprobs(base::PackArray<float>({1})); },
      [](auto* s) { s->mutable_logprobs()->set_chosen_logprobs(base::PackArray<float>({1})); },
      [](auto* s) { s->mutable_prompt_logprobs()->set_raw(base::PackArray<float>({1})); },
      [](auto* s) { s->set_text("abd"); },
      [](auto* s) { s->set_text_tail_bytes("\xf0"); },
      [](auto* s) { s->set_finish_reason(v1::FINISH_REASON_STOP); },
      [](auto* s) { s->mutable_matched_stop()->set_id(7); },
  };
  const v1::Sample expected = MakeSample();
  for (const auto& change : changes) {
    v1::Sample actual = expected;
    change(&actual);
    EXPECT_NE(BitsOf(actual), BitsOf(expected)) << actual.ShortDebugString();
    EXPECT_TRUE(FirstDifference(expected, actual).has_value()) << actual.ShortDebugString();
  }
}

TEST(SampleBitsTest, WhatHonestRunsDifferInDoesNotCount) {
  v1::Sample actual = MakeSample();
  actual.set_index(9);
  actual.mutable_usage()->set_worker_id("other");
  actual.mutable_usage()->set_preemptions(3);
  EXPECT_EQ(BitsOf(actual), BitsOf(MakeSample()));
  EXPECT_FALSE(FirstDifference(MakeSample(), actual).has_value());
}

TEST(SampleBitsTest, NamesTheFirstDifferentPositionWithBits) {
  v1::Sample actual = MakeSample();
  actual.mutable_logprobs()->set_raw(base::PackArray<float>({-0.5f, -0.25f, -0.0f}));
  EXPECT_THAT(FirstDifference(MakeSample(), actual).value(),
              HasSubstr("position 2: 0 (00000000) and -0 (80000000)"));
}

TEST(SampleBitsTest, AShorterAnswerDiffersWhereItEnds) {
  v1::Sample actual = MakeSample();
  actual.set_token_ids(base::PackArray<uint32_t>({5, 6}));
  EXPECT_THAT(FirstDifference(MakeSample(), actual).value(),
              HasSubstr("ids differ at position 2: 7 and nothing"));
}

}  // namespace
}  // namespace lockstep::client
