#include "services/gateway/sample_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/packed_array.h"

namespace lockstep::gateway {
namespace {

std::shared_ptr<RequestContext> Context() {
  auto limits = std::make_shared<ModelLimits>();
  limits->fingerprint.set_mode(v1::MODE_DETERMINISTIC);
  limits->fingerprint_digest = "f";
  auto context = std::make_shared<RequestContext>();
  context->limits = limits;
  context->request.request_id = "r";
  context->request.prompt_ids = {5, 6, 7, 8};
  context->request.sub_seeds = {42};
  context->request.effective.mutable_logprobs()->set_generated(true);
  context->request.effective.mutable_stop()->set_max_new_tokens(10);
  return context;
}

v1::SequenceDelta Tokens(int64_t begin, const std::vector<int32_t>& ids, float logprob = -1) {
  v1::SequenceDelta delta;
  delta.set_token_begin(begin);
  delta.set_token_ids(base::PackArray(ids));
  delta.mutable_logprobs()->set_raw(base::PackArray(std::vector<float>(ids.size(), logprob)));
  delta.mutable_logprobs()->set_scaled(base::PackArray(std::vector<float>(ids.size(), logprob)));
  delta.set_weight_version(1);
  delta.set_weights_digest("w1");
  return delta;
}

TEST(SampleLedgerTest, KeepsWhatOverlapsOnceWhenTheBitsAgree) {
  SampleLedger ledger(Context(), 0);
  ASSERT_TRUE(ledger.Apply(Tokens(0, {1, 2, 3})).ok());
  ASSERT_TRUE(ledger.Apply(Tokens(1, {2, 3, 4})).ok());
  ASSERT_TRUE(ledger.Apply(Tokens(0, {1})).ok());
  EXPECT_EQ(ledger.token_count(), 4);
  EXPECT_EQ(ledger.sample().token_ids(), base::PackArray(std::vector<int32_t>{1, 2, 3, 4}));
  ASSERT_EQ(ledger.sample().weight_versions_size(), 1);
  EXPECT_EQ(ledger.sample().weight_versions(0).count(), 4);
}

TEST(SampleLedgerTest, RefusesOtherIdsAndOtherLogprobBitsAtAKnownPosition) {
  SampleLedger ledger(Context(), 0);
  ASSERT_TRUE(ledger.Apply(Tokens(0, {1, 2, 3})).ok());
  EXPECT_EQ(ledger.Apply(Tokens(1, {9})).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ledger.Apply(Tokens(1, {2}, -1.0000001f)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ledger.token_count(), 3);
}

TEST(SampleLedgerTest, RefusesAGapAndArraysOfTheWrongSize) {
  SampleLedger ledger(Context(), 0);
  EXPECT_EQ(ledger.Apply(Tokens(1, {1})).code(), absl::StatusCode::kInternal);
  v1::SequenceDelta wrong = Tokens(0, {1, 2});
  wrong.mutable_logprobs()->mutable_raw()->resize(4);
  EXPECT_EQ(ledger.Apply(wrong).code(), absl::StatusCode::kInternal);
  wrong = Tokens(0, {1, 2});
  wrong.mutable_logprobs()->mutable_scaled()->resize(4);
  EXPECT_EQ(ledger.Apply(wrong).code(), absl::StatusCode::kInternal);
  // What ends with such an error has arrays of equal lengths too.
  EXPECT_EQ(ledger.sample().token_ids(), "");
  EXPECT_EQ(ledger.sample().logprobs().raw(), "");
}

TEST(SampleLedgerTest, ResubmitsFromWhatItHoldsAndCountsTheMove) {
  SampleLedger ledger(Context(), 0);
  ASSERT_TRUE(ledger.Apply(Tokens(0, {1, 2, 3})).ok());
  ledger.CountResumption();
  const v1::SequenceSpec spec = ledger.Spec();
  EXPECT_THAT(spec.generated_ids(), ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(spec.deliver_output_from(), 3);
  v1::SequenceDelta last = Tokens(3, {4});
  last.mutable_end()->set_reason(v1::FINISH_REASON_LENGTH);
  ASSERT_TRUE(ledger.Apply(last).ok());
  EXPECT_TRUE(ledger.ended());
  EXPECT_EQ(ledger.sample().usage().resumptions(), 1);
  EXPECT_EQ(ledger.sample().usage().generated_tokens(), 4);
}

TEST(SampleLedgerTest, GivenTokensAreAskedForUntilTheyAreScored) {
  auto context = Context();
  context->request.generated_ids = {1, 2, 3, 4};
  SampleLedger ledger(context, 0);
  EXPECT_EQ(ledger.Spec().deliver_output_from(), 0);
  ASSERT_TRUE(ledger.Apply(Tokens(0, {1, 2})).ok());
  EXPECT_THAT(ledger.Spec().generated_ids(), ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(ledger.Spec().deliver_output_from(), 2);
}

TEST(SampleLedgerTest, GivenTokensAreInTheSampleHoweverEarlyItEnds) {
  const std::vector<int32_t> given = {1, 2, 3, 4};
  for (int64_t came = 0; came <= 4; ++came) {
    for (const auto reason :
         {v1::FINISH_REASON_ABORT, v1::FINISH_REASON_PARTIAL, v1::FINISH_REASON_ERROR}) {
      for (const bool by_the_cluster : {false, true}) {
        auto context = Context();
        context->request.generated_ids = given;
        SampleLedger ledger(context, 0);
        ASSERT_TRUE(ledger.Apply(Tokens(0, {given.begin(), given.begin() + came})).ok());
        v1::SequenceDelta last;
        last.mutable_end()->set_reason(reason);
        if (by_the_cluster) {
          ASSERT_TRUE(ledger.Apply(last).ok());
        } else {
          ledger.End(reason, absl::InternalError("failed"));
        }
        const v1::Sample& sample = ledger.sample();
        EXPECT_EQ(sample.token_ids(), base::PackArray(given));
        EXPECT_EQ(sample.unscored_tokens(), 4 - came);
        EXPECT_EQ(sample.usage().generated_tokens(), 4);
        EXPECT_EQ(base::PackedCount(sample.logprobs().raw()), came);
        EXPECT_EQ(base::PackedCount(sample.logprobs().scaled()), came);
        EXPECT_EQ(sample.weight_versions_size(), came > 0);
        EXPECT_EQ(ledger.token_count(), came);
        EXPECT_EQ(sample.receipt().digest().empty(), came < 4 || reason == v1::FINISH_REASON_ERROR);
        // One who was told all that came gets the rest; a late one everything.
        const v1::GenerateDelta rest = ledger.Since(came, 0, 0);
        EXPECT_EQ(rest.token_ids(), base::PackArray(given).substr(4 * came));
        EXPECT_EQ(rest.logprobs().raw(), "");
        EXPECT_EQ(rest.finished().unscored_tokens(), 4 - came);
        const v1::GenerateDelta all = ledger.Since(0, 0, 0);
        EXPECT_EQ(all.token_ids(), base::PackArray(given));
        EXPECT_EQ(base::PackedCount(all.logprobs().raw()), came);
      }
    }
  }
}

TEST(SampleLedgerTest, RefusesAnEndByItselfBeforeAllGivenTokensCame) {
  for (const int64_t came : {3, 4}) {
    auto context = Context();
    context->request.generated_ids = {1, 2, 3, 4};
    SampleLedger ledger(context, 0);
    v1::SequenceDelta last = Tokens(0, came == 3 ? std::vector{1, 2, 3} : std::vector{1, 2, 3, 4});
    last.mutable_end()->set_reason(v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(ledger.Apply(last).code(),
              came == 3 ? absl::StatusCode::kInternal : absl::StatusCode::kOk);
  }
}

TEST(SampleLedgerTest, ReceiptLeavesOutWhatWasAskedOfThePromptUnlessThatIsTheAnswer) {
  const auto receipt = [](bool score, int64_t prompt_from) {
    auto context = Context();
    context->request.score_only = score;
    if (prompt_from > 0) {
      context->request.effective.mutable_logprobs()->set_prompt_from(prompt_from);
      context->request.effective.mutable_logprobs()->set_prompt_details(true);
    }
    SampleLedger ledger(context, 0);
    ledger.End(v1::FINISH_REASON_LENGTH);
    return ledger.sample().receipt().digest();
  };
  EXPECT_EQ(receipt(false, 0), receipt(false, 2));
  EXPECT_NE(receipt(true, 1), receipt(true, 2));
}

TEST(SampleLedgerTest, ReceiptCoversTokensLogprobsWeightsAndSeed) {
  const auto receipt = [](auto change) {
    auto context = Context();
    v1::SequenceDelta delta = Tokens(0, {1, 2, 3});
    delta.mutable_end()->set_reason(v1::FINISH_REASON_LENGTH);
    change(context.get(), &delta);
    SampleLedger ledger(context, 0);
    EXPECT_TRUE(ledger.Apply(delta).ok());
    return ledger.sample().receipt().digest();
  };
  const std::string base = receipt([](auto*, auto*) {});
  EXPECT_EQ(receipt([](auto*, auto*) {}), base);
  EXPECT_EQ(receipt([](auto* c, auto*) { c->request.effective.set_deadline_seconds(9); }), base);
  EXPECT_NE(receipt([](auto* c, auto*) { c->request.sub_seeds[0] = 43; }), base);
  EXPECT_NE(receipt([](auto* c, auto*) { c->request.prompt_ids[0] = 1; }), base);
  EXPECT_NE(receipt([](auto*, auto* d) { d->set_weights_digest("w2"); }), base);
  EXPECT_NE(receipt([](auto*, auto* d) { (*d->mutable_token_ids())[0] = 9; }), base);
  EXPECT_NE(receipt([](auto*, auto* d) { (*d->mutable_logprobs()->mutable_raw())[0] = 9; }), base);
}

}  // namespace
}  // namespace lockstep::gateway
