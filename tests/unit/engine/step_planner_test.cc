#include "services/worker/engine/step_planner.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

// The worked example of the architecture: two prompts of 6000, split 2048, budget 8192.
TEST(StepPlannerTest, TwoPromptsOf6000TakeTwoSteps) {
  StepPlanner planner({.split_kv_size = 2048, .chunk_tokens = 8192, .sequences_max = 256});
  EXPECT_EQ(planner.Take(0, 6000), 6000);
  EXPECT_EQ(planner.Take(0, 6000), 2048);
  planner.BeginStep();
  EXPECT_EQ(planner.Take(6000, 6000), 1) << "the first one decodes";
  EXPECT_EQ(planner.Take(2048, 6000), 3952);
}

TEST(StepPlannerTest, APrefillWaitsWhenNoCutIsWithinTheBudget) {
  StepPlanner planner({.split_kv_size = 100, .chunk_tokens = 300, .sequences_max = 8});
  EXPECT_EQ(planner.Take(0, 250), 250);
  EXPECT_EQ(planner.Take(0, 500), 0) << "50 tokens are left and the first cut is at 100";
  EXPECT_EQ(planner.Take(0, 40), 40) << "a shorter one still fits";
  EXPECT_EQ(planner.Take(90, 500), 10) << "behind a cached prefix the cuts stay absolute";
}

TEST(StepPlannerTest, DecodeRowsTakeNoPrefillTokens) {
  StepPlanner planner({.split_kv_size = 64, .chunk_tokens = 64, .sequences_max = 4});
  EXPECT_EQ(planner.Take(10, 10), 1);
  EXPECT_EQ(planner.Take(70, 64), 1);
  EXPECT_EQ(planner.Take(0, 64), 64);
  EXPECT_EQ(planner.Take(5, 5), 1);
  EXPECT_TRUE(planner.full());
  EXPECT_EQ(planner.Take(5, 5), 0);
}

TEST(StepPlannerTest, EveryCutIsAMultipleOfTheSplitOrTheLength) {
  for (int64_t length = 1; length <= 70; ++length) {
    for (int64_t computed = 0; computed < length; ++computed) {
      for (int64_t budget = 0; budget <= 48; ++budget) {
        const int64_t cut =
            NextCut({.computed = computed, .length = length, .split = 16, .budget = budget});
        ASSERT_GE(cut, computed);
        ASSERT_LE(cut, length);
        ASSERT_LE(cut - computed, budget);
        if (cut == computed) {
          // It waits only when the next allowed cut is out of reach.
          const int64_t next = std::min(length, (computed / 16 + 1) * 16);
          ASSERT_GT(next - computed, budget);
        } else {
          ASSERT_TRUE(cut == length || cut % 16 == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::worker
