#include "services/worker/model/null_executor.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/model/step_driver.h"

namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::DrivenSequence;
using testing::Schedule;
using testing::Trace;

DrivenSequence Sampled(uint64_t sub_seed) {
  DrivenSequence sequence;
  sequence.prompt = testing::RandomIds(5, 40, 256);
  sequence.new_tokens = 20;
  sequence.sampling = {.sub_seed = sub_seed, .temperature = 0.5f};
  return sequence;
}

class NullExecutorTest : public ::testing::Test {
 protected:
  NullExecutor executor_{{.vocabulary = 256, .kv_blocks = 64, .kv_block_tokens = 32}};
  const Schedule alone_ = {.blocks = Blocks(0, 1, 2)};
};

TEST_F(NullExecutorTest, AnswersDependOnSeedAndPositionAlone) {
  const Trace expected = testing::Drive(&executor_, Sampled(1), alone_);
  ASSERT_EQ(expected.ids.size(), size_t{20});
  Schedule schedule = alone_;
  schedule.cuts = {3, 17, 39};
  schedule.neighbours = 6;
  schedule.neighbour_blocks = Blocks(2, 1, 12);
  schedule.poisoned = {0, 1, 2};
  EXPECT_EQ(DifferenceOf(testing::Drive(&executor_, Sampled(1), schedule), expected), "");
  EXPECT_NE(testing::Drive(&executor_, Sampled(2), alone_).ids, expected.ids);
}

TEST_F(NullExecutorTest, ScoringGivesTheLogprobsOfDrawing) {
  const Trace drawn = testing::Drive(&executor_, Sampled(1), alone_);
  const LogprobBlock scored = testing::Score(&executor_, Sampled(1), drawn.ids, alone_);
  ASSERT_EQ(scored.raw.size(), size_t{39 + 20});
  EXPECT_EQ(std::vector<float>(scored.raw.end() - 20, scored.raw.end()), drawn.drawn.raw);
  EXPECT_EQ(std::vector<float>(scored.scaled.end() - 20, scored.scaled.end()), drawn.drawn.scaled);
}

TEST_F(NullExecutorTest, BannedIdsAreNeverDrawn) {
  constexpr float kBan = -std::numeric_limits<float>::infinity();
  std::vector<kernels::IdBias> bans;
  const std::vector<int32_t> tokens = {1};
  StepSequence sequence;
  sequence.tokens = tokens;
  sequence.sample = true;
  sequence.sampling.position = 1;
  std::vector<StepSequenceResult> results;
  for (int drawn = 0; drawn < 256; ++drawn) {
    sequence.biases = bans;
    ASSERT_TRUE(executor_.Execute({&sequence, 1}, &results).ok());
    ASSERT_EQ(results[0].error, kernels::SampleError::kNone);
    for (const kernels::IdBias& ban : bans) ASSERT_NE(results[0].sampled_id, ban.id);
    bans.push_back({results[0].sampled_id, kBan});
  }
  sequence.biases = bans;
  ASSERT_TRUE(executor_.Execute({&sequence, 1}, &results).ok());
  EXPECT_EQ(results[0].error, kernels::SampleError::kAllBanned);
  EXPECT_EQ(results[0].sampled_id, -1);
}

}  // namespace
}  // namespace lockstep::worker
