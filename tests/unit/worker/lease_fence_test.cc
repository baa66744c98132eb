#include "services/worker/lease_fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/worker/step_report.h"

namespace lockstep::worker {
namespace {

constexpr absl::Duration kLease = absl::Seconds(3);

class LeaseFenceTest : public ::testing::Test {
 protected:
  void Register(uint64_t incarnation, uint64_t admission_epoch = 5) {
    fence_.Registered(base::Incarnation(incarnation), kLease, 1, base::Epoch(admission_epoch));
  }
  base::SimClock clock_;
  LeaseFence fence_{"cluster", base::WorkerId("w"), &clock_};
};

TEST_F(LeaseFenceTest, SendsNothingBeforeRegistration) { EXPECT_FALSE(fence_.MaySend()); }

TEST_F(LeaseFenceTest, ScheduleOutageIsNoStallWhileTheOwnClockTicks) {
  Register(1);
  for (int i = 0; i < 100; ++i) {
    clock_.Advance(kLease / 2);
    EXPECT_TRUE(fence_.Tick());
    EXPECT_TRUE(fence_.MaySend());
  }
}

TEST_F(LeaseFenceTest, StallLongerThanTheLeaseClosesWhoeverNoticesFirst) {
  Register(1);
  clock_.Advance(kLease + absl::Milliseconds(1));
  EXPECT_FALSE(fence_.MaySend());
  EXPECT_FALSE(fence_.Tick()) << "a tick after the stall must not open the fence again";
  EXPECT_FALSE(fence_.MaySend());
  Register(2);
  EXPECT_TRUE(fence_.MaySend());
}

TEST_F(LeaseFenceTest, NamesTheFieldOfAForeignIdentity) {
  Register(7);
  EXPECT_TRUE(fence_.CheckIdentity({"cluster", base::WorkerId("w"), base::Incarnation(7)}).ok());
  const auto message = [&](const Identity& identity) {
    return std::string(fence_.CheckIdentity(identity).message());
  };
  EXPECT_THAT(message({"other", base::WorkerId("w"), base::Incarnation(7)}),
              ::testing::HasSubstr("cluster_id"));
  EXPECT_THAT(message({"cluster", base::WorkerId("x"), base::Incarnation(7)}),
              ::testing::HasSubstr("worker_id"));
  EXPECT_THAT(message({"cluster", base::WorkerId("w"), base::Incarnation(8)}),
              ::testing::HasSubstr("incarnation"));
}

TEST_F(LeaseFenceTest, RefusesOlderEpochsOfTicketsAndOfSchedulers) {
  Register(1, 5);
  EXPECT_TRUE(fence_.CheckTicketEpoch(base::Epoch(5)).ok());
  EXPECT_FALSE(fence_.CheckTicketEpoch(base::Epoch(4)).ok());
  ASSERT_TRUE(fence_.AdvanceEpochs(2, base::Epoch(9)).ok());
  EXPECT_FALSE(fence_.CheckTicketEpoch(base::Epoch(8)).ok());
  EXPECT_FALSE(fence_.AdvanceEpochs(1, base::Epoch(20)).ok());
  EXPECT_TRUE(fence_.CheckTicketEpoch(base::Epoch(9)).ok());
}

TEST(StepReportTest, KeepsWhatCameWhileAHeartbeatWasUnderWay) {
  StepReport report;
  report.Add(std::vector<Cut>{{.begin = 0, .end = 1}}, std::vector{base::TicketId(1)});
  const StepReport::Batch batch = report.Peek(10);
  report.Add(std::vector<Cut>{{.begin = 1, .end = 2}}, std::vector{base::TicketId(2)});
  report.Acknowledge(batch);
  const StepReport::Batch rest = report.Peek(10);
  ASSERT_EQ(rest.cuts.size(), 1u);
  EXPECT_EQ(rest.cuts[0].begin, 1);
  EXPECT_EQ(rest.ended, std::vector{base::TicketId(2)});
}

}  // namespace
}  // namespace lockstep::worker
