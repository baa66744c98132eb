#include "services/router/delivery_log.h"

#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

SequenceSpec SpecWith(std::vector<uint32_t> generated, int64_t output_from, int64_t prompt_from) {
  SequenceSpec spec;
  spec.prompt =
      std::make_shared<const std::vector<uint32_t>>(std::vector<uint32_t>{10, 11, 12, 13});
  spec.generated_ids = std::move(generated);
  spec.deliver_output_from = output_from;
  spec.deliver_prompt_from = prompt_from;
  return spec;
}

SequenceDelta Outputs(int64_t begin, const std::vector<uint32_t>& ids) {
  return MakeDelta(base::TicketId(1), begin, ids);
}

SequenceDelta Prompt(int64_t begin, const std::vector<uint32_t>& bits) {
  SequenceDelta delta;
  delta.prompt_begin = begin;
  delta.prompt_count = static_cast<int64_t>(bits.size());
  delta.prompt_logprobs.raw = PackIds(bits);
  return delta;
}

TEST(DeliveryLogTest, PassesNewPositionsAndRemembersThem) {
  DeliveryLog log(SpecWith({}, 0, 0));
  SequenceDelta delta = Outputs(0, {5, 6});
  const auto accepted = log.Accept(&delta);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->new_tokens, 2);
  EXPECT_EQ(accepted->duplicate_positions, 0);
  EXPECT_EQ(log.output_ids(), (std::vector<uint32_t>{5, 6}));
  EXPECT_EQ(log.delivered_outputs(), 2);
}

TEST(DeliveryLogTest, CutsWhatWasDeliveredFromEveryArray) {
  DeliveryLog log(SpecWith({}, 0, 0));
  SequenceDelta first = Outputs(0, {5, 6});
  first.logprobs.top_ids = PackIds({1, 2, 3, 4});
  first.logprobs.top_logprobs = PackIds({1, 2, 3, 4});
  ASSERT_TRUE(log.Accept(&first).ok());
  SequenceDelta again = Outputs(0, {5, 6, 7});
  again.logprobs.top_ids = PackIds({1, 2, 3, 4, 5, 6});
  again.logprobs.top_logprobs = PackIds({1, 2, 3, 4, 5, 6});
  const auto accepted = log.Accept(&again);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->new_tokens, 1);
  EXPECT_EQ(accepted->duplicate_positions, 2);
  EXPECT_EQ(again.token_begin, 2);
  EXPECT_EQ(UnpackIds(again.token_ids), (std::vector<uint32_t>{7}));
  EXPECT_EQ(UnpackIds(again.logprobs.raw), (std::vector<uint32_t>{7}));
  EXPECT_EQ(UnpackIds(again.logprobs.top_ids), (std::vector<uint32_t>{5, 6}));
}

TEST(DeliveryLogTest, OtherBitsInAnyArrayAreDataLossAndChangeNothing) {
  for (int which = 0; which < 4; ++which) {
    DeliveryLog log(SpecWith({}, 0, 0));
    SequenceDelta first = Outputs(0, {5, 6});
    first.logprobs.entropy = PackIds({8, 9});
    ASSERT_TRUE(log.Accept(&first).ok());
    SequenceDelta again = Outputs(1, {6, 7});
    again.logprobs.entropy = PackIds({9, 3});
    if (which == 1) again.token_ids = PackIds({4, 7});
    if (which == 2) again.logprobs.raw = PackIds({4, 7});
    if (which == 3) again.logprobs.entropy = PackIds({4, 3});
    EXPECT_EQ(log.Accept(&again).status().code(),
              which == 0 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << which;
    EXPECT_EQ(log.delivered_outputs(), which == 0 ? 3 : 2);
  }
}

TEST(DeliveryLogTest, GapIsOutOfRange) {
  DeliveryLog log(SpecWith({}, 0, 4));
  SequenceDelta delta = Outputs(1, {5});
  EXPECT_EQ(log.Accept(&delta).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(DeliveryLogTest, GivenTokensAreDeliveredFromWhereAskedAndMustMatch) {
  DeliveryLog log(SpecWith({5, 6, 7}, 1, 0));
  SequenceDelta wrong = Outputs(1, {9, 7});
  EXPECT_EQ(log.Accept(&wrong).status().code(), absl::StatusCode::kDataLoss);
  SequenceDelta right = Outputs(1, {6, 7, 8});
  const auto accepted = log.Accept(&right);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->new_tokens, 3);
  EXPECT_EQ(log.output_ids(), (std::vector<uint32_t>{5, 6, 7, 8}));
}

TEST(DeliveryLogTest, PromptPositionsResumeWhereTheyStopped) {
  DeliveryLog log(SpecWith({}, 0, 1));
  EXPECT_EQ(log.deliver_prompt_from(), 1);
  SequenceDelta first = Prompt(1, {21});
  ASSERT_TRUE(log.Accept(&first).ok());
  EXPECT_EQ(log.deliver_prompt_from(), 2);
  SequenceDelta rest = Prompt(1, {21, 22, 23});
  const auto accepted = log.Accept(&rest);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->new_prompt_positions, 2);
  EXPECT_EQ(rest.prompt_begin, 2);
  EXPECT_EQ(UnpackIds(rest.prompt_logprobs.raw), (std::vector<uint32_t>{22, 23}));
  EXPECT_EQ(log.deliver_prompt_from(), 0) << "all delivered";
}

TEST(DeliveryLogTest, PromptPositionsNobodyAskedForAreRefused) {
  DeliveryLog none(SpecWith({}, 0, 0));
  SequenceDelta delta = Prompt(1, {21});
  EXPECT_EQ(none.Accept(&delta).status().code(), absl::StatusCode::kOutOfRange);
  DeliveryLog some(SpecWith({}, 0, 3));
  SequenceDelta beyond = Prompt(3, {21, 22});
  EXPECT_EQ(some.Accept(&beyond).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(DeliveryLogTest, MalformedArraysAreInvalidArguments) {
  const auto code = [](auto change) {
    DeliveryLog log(SpecWith({}, 0, 1));
    SequenceDelta delta = Outputs(0, {5, 6});
    change(&delta);
    return log.Accept(&delta).status().code();
  };
  EXPECT_EQ(code([](SequenceDelta* d) { d->token_ids.pop_back(); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SequenceDelta* d) { d->logprobs.raw.resize(4); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SequenceDelta* d) { d->logprobs.raw.resize(16); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SequenceDelta* d) { d->logprobs.top_ids.resize(8); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SequenceDelta* d) { d->prompt_logprobs.raw.resize(4); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SequenceDelta* d) { d->token_begin = -1; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SequenceDelta* d) { d->prompt_count = -1; }),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::router
