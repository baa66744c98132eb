// Which groups a GenerateMany stream keeps when it ends early.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::GenerateManyNow;
using testing::ManyAnswers;

v1::GenerateRequest Request(const std::string& id, const std::string& prompt, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.set_prompt_text(prompt);
  request.set_seed(3);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

class GroupOrderTest : public testing::SharedClusterTest<GroupOrderTest> {
 public:
  static testing::ClusterHarness::Options ClusterOptions() {
    return {.model = "deploy/demo-model", .kv_bytes = int64_t{64} << 20};
  }

 protected:
  // A stream of these prompts that ends after so many groups.
  static ManyAnswers Select(v1::SelectOrder select, int64_t groups_total,
                            const std::vector<v1::GenerateRequest>& prompts,
                            int64_t slots_max = 0) {
    std::vector<v1::GenerateManyRequest> messages(1);
    v1::GenerateManyOptions* options = messages[0].mutable_options();
    options->set_select(select);
    options->set_groups_total(groups_total);
    options->set_slots_max(slots_max);
    for (const v1::GenerateRequest& prompt : prompts) {
      *messages.emplace_back().mutable_generate() = prompt;
    }
    return GenerateManyNow(stub(), messages);
  }
  static v1::FinishReason EndOf(const ManyAnswers& answers, const std::string& id) {
    const auto found = answers.by_id.find(id);
    if (found == answers.by_id.end() || !found->second.has_response()) {
      return v1::FINISH_REASON_UNSPECIFIED;
    }
    return found->second.response().samples(0).finish_reason();
  }
};

// Long texts become ids on another thread, so what was sent after them starts before them.
TEST_F(GroupOrderTest, LowestIndexKeepsWhatWasSentFirstHoweverLongItsText) {
  for (int round = 0; round < 3; ++round) {
    std::vector<v1::GenerateRequest> prompts;
    for (int i = 0; i < 2; ++i) {
      prompts.push_back(
          Request(absl::StrCat("long-", i, "-", round), std::string(5000, 'x') + " 12+34*2=", 60));
    }
    for (int i = 0; i < 8; ++i) {
      prompts.push_back(Request(absl::StrCat("short-", i, "-", round), "7+8*9=", 5));
    }
    const ManyAnswers answers = Select(v1::SELECT_ORDER_LOWEST_INDEX, 2, prompts);
    ASSERT_TRUE(answers.status.ok()) << answers.status.error_message();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(EndOf(answers, absl::StrCat("long-", i, "-", round)), v1::FINISH_REASON_LENGTH);
    }
  }
}

TEST_F(GroupOrderTest, OfTwoEqualIdsTheOneThatWasSentFirstRuns) {
  v1::GenerateRequest late = Request("twice", std::string(5000, 'x'), 60);
  const ManyAnswers answers =
      Select(v1::SELECT_ORDER_LOWEST_INDEX, 0, {late, Request("twice", "7+8*9=", 5)});
  ASSERT_TRUE(answers.status.ok()) << answers.status.error_message();
  ASSERT_EQ(answers.errors.size(), 1u) << answers.errors[0].message();
  EXPECT_EQ(answers.errors[0].message(),
            "generate.request_id: \"twice\" is in work on this stream already");
  EXPECT_EQ(answers.by_id.at("twice").response().samples(0).token_ids().size(), 4u * 60);
}

TEST_F(GroupOrderTest, ARefusedPromptLeavesItsPlaceToTheNext) {
  v1::GenerateRequest wrong = Request("wrong", "1+1=", 5);
  wrong.mutable_sampling()->set_temperature(-1);
  const ManyAnswers answers = Select(v1::SELECT_ORDER_LOWEST_INDEX, 1,
                                     {wrong, Request("", "1+1=", 5), Request("slow", "1+1=", 300),
                                      Request("slower", "1+1=", 3000)});
  ASSERT_TRUE(answers.status.ok()) << answers.status.error_message();
  EXPECT_EQ(answers.errors.size(), 2u);
  EXPECT_EQ(EndOf(answers, "slow"), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(EndOf(answers, "slower"), v1::FINISH_REASON_PARTIAL);
}

TEST_F(GroupOrderTest, WhatWasNotInWorkWhenTheStreamHadItsGroupsHasNoAnswer) {
  std::vector<v1::GenerateRequest> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(Request(absl::StrCat("one-", i), "1+1=", 5));
  for (const auto select : {v1::SELECT_ORDER_FIRST_FINISHED, v1::SELECT_ORDER_LOWEST_INDEX}) {
    const ManyAnswers answers = Select(select, 2, prompts, /*slots_max=*/1);
    EXPECT_TRUE(answers.status.ok()) << answers.status.error_message();
    EXPECT_TRUE(answers.errors.empty());
    ASSERT_EQ(answers.by_id.size(), 2u);
    for (const char* id : {"one-0", "one-1"})
      EXPECT_EQ(EndOf(answers, id), v1::FINISH_REASON_LENGTH);
  }
}

}  // namespace
}  // namespace lockstep
