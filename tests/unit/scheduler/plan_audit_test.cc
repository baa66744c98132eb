#include "services/scheduler/plan_audit.h"

#include "gtest/gtest.h"
#include "tests/support/live_bytes.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using base::TicketId;

// The two prompts of 6000 tokens at split 2048 that the architecture works through.
constexpr CutBounds kBounds{
    .plan = {.split_kv_size = 2048, .length = 6000}, .kv_block_tokens = 64, .length_max = 6500};

Cut CutAt(int64_t begin, int64_t end, int64_t length = 6000) {
  return {.ticket = TicketId(1), .begin = begin, .end = end, .length = length};
}

TEST(CheckCutTest, AllowsEveryMultipleOfTheSplitAndTheLength) {
  EXPECT_TRUE(CheckCut(kBounds, CutAt(0, 6000)).ok());
  EXPECT_TRUE(CheckCut(kBounds, CutAt(0, 2048)).ok());
  EXPECT_TRUE(CheckCut(kBounds, CutAt(2048, 6000)).ok());
  EXPECT_TRUE(CheckCut(kBounds, CutAt(2048, 4096)).ok());
}

TEST(CheckCutTest, RefusesEverythingElse) {
  EXPECT_FALSE(CheckCut(kBounds, CutAt(0, 2047)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(0, 2112)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(0, 5999)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(0, 6001)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(4096, 6144)).ok());  // Beyond the length.
  EXPECT_FALSE(CheckCut(kBounds, CutAt(100, 2048)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(2048, 2048)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(-64, 2048)).ok());
}

TEST(CheckCutTest, CachedPrefixMovesOnlyTheBegin) {
  EXPECT_TRUE(CheckCut(kBounds, CutAt(640, 2048)).ok());
  EXPECT_TRUE(CheckCut(kBounds, CutAt(5952, 6000)).ok());
}

TEST(CheckCutTest, LengthMayGrowByWhatWasGeneratedBeforeAPreemption) {
  EXPECT_TRUE(CheckCut(kBounds, CutAt(4096, 6123, 6123)).ok());
  EXPECT_TRUE(CheckCut(kBounds, CutAt(4096, 6500, 6500)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(4096, 6501, 6501)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(4096, 5000, 5000)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(4096, 6122, 6123)).ok());
}

TEST(CheckCutTest, UntoldLengthAllowsItsWholeRange) {
  EXPECT_TRUE(CheckCut(kBounds, CutAt(4096, 6000, 0)).ok());
  EXPECT_TRUE(CheckCut(kBounds, CutAt(4096, 6123, 0)).ok());
  EXPECT_FALSE(CheckCut(kBounds, CutAt(4096, 5999, 0)).ok());
}

class PlanAuditTest : public ::testing::Test {
 protected:
  absl::Time At(double seconds) const { return absl::UnixEpoch() + absl::Seconds(seconds); }
  PlanAudit audit_{absl::Seconds(10)};
  const WorkerName worker_ = NameOf("a");
};

TEST_F(PlanAuditTest, TicketlessCutIsAViolation) {
  audit_.Add(TicketId(1), worker_, kBounds);
  EXPECT_TRUE(audit_.Check(worker_, CutAt(0, 2048)).ok());
  EXPECT_EQ(audit_.Check(worker_, {.ticket = TicketId(0), .begin = 0, .end = 2048}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(audit_.Check(NameOf("b"), CutAt(0, 2048)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(audit_.violation_count(), 2);
  EXPECT_EQ(audit_.cut_count(), 3);
}

TEST_F(PlanAuditTest, PlanOutlivesItsTicketForLateAndRepeatedReports) {
  audit_.Add(TicketId(1), worker_, kBounds);
  audit_.Retire(TicketId(1), At(0));
  audit_.Expire(At(9.9));
  EXPECT_TRUE(audit_.Check(worker_, CutAt(0, 2048)).ok());
  audit_.Expire(At(10));
  EXPECT_EQ(audit_.size(), 0u);
  EXPECT_FALSE(audit_.Check(worker_, CutAt(0, 2048)).ok());
}

TEST_F(PlanAuditTest, RevivedTicketKeepsItsPlan) {
  audit_.Add(TicketId(1), worker_, kBounds);
  audit_.Retire(TicketId(1), At(0));
  audit_.Revive(TicketId(1), worker_, {.plan = {.split_kv_size = 64}, .kv_block_tokens = 64});
  audit_.Expire(At(20));
  EXPECT_FALSE(audit_.Check(worker_, CutAt(0, 64)).ok());
  EXPECT_TRUE(audit_.Check(worker_, CutAt(0, 2048)).ok());
}

TEST_F(PlanAuditTest, ForgottenPlansGiveTheirMemoryBack) {
  const int64_t before = testing::LiveBytes();
  constexpr uint64_t kTickets = 20000;
  for (uint64_t i = 1; i <= kTickets; ++i) {
    audit_.Add(TicketId(i), worker_, kBounds);
    audit_.Retire(TicketId(i), At(0));
  }
  audit_.Expire(At(10));
  EXPECT_LT(testing::LiveBytes() - before, 64 << 10);
}

}  // namespace
}  // namespace lockstep::scheduler
