#include "services/scheduler/ticket_ledger.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using base::RequestId;
using base::TicketId;
using testing::ElementsAre;
using testing::IsEmpty;

const WorkerName kWorker = NameOf("a");

class TicketLedgerTest : public testing::Test {
 protected:
  absl::Time At(double seconds) const { return absl::UnixEpoch() + absl::Seconds(seconds); }
  WorkerReport Report(const std::vector<TicketId>& held, const std::vector<TicketId>& ended = {}) {
    WorkerReport report{.name = kWorker, .ended = ended};
    for (const TicketId ticket : held) report.held.push_back({.ticket = ticket});
    return report;
  }
  TicketLedger ledger_{{.scheduler_epoch = 3, .expiry = absl::Seconds(5)}};
};

TEST_F(TicketLedgerTest, IdsOfTwoOfficesNeverMeet) {
  TicketLedger next({.scheduler_epoch = 4, .expiry = absl::Seconds(5)});
  const TicketId old_id = ledger_.Grant(kWorker, RequestId("r"), At(0));
  const TicketId new_id = next.Grant(kWorker, RequestId("r"), At(0));
  EXPECT_NE(old_id, new_id);
  EXPECT_TRUE(next.FromEarlierOffice(old_id));
  EXPECT_FALSE(next.FromEarlierOffice(new_id));
  EXPECT_FALSE(next.FromEarlierOffice(TicketId(0)));
}

TEST_F(TicketLedgerTest, TicketOnItsWayIsNotTakenForEnded) {
  const TicketId id = ledger_.Grant(kWorker, RequestId("r"), At(0));
  EXPECT_THAT(ledger_.ApplyReport(Report({}), At(4.9)), IsEmpty());
  EXPECT_THAT(ledger_.ApplyReport(Report({id}), At(5)), IsEmpty());
  EXPECT_THAT(ledger_.ApplyReport(Report({}), At(5.1)), ElementsAre(id));
  EXPECT_EQ(ledger_.size(), 0u);
}

TEST_F(TicketLedgerTest, TicketThatNeverArrivedExpires) {
  const TicketId id = ledger_.Grant(kWorker, RequestId("r"), At(0));
  EXPECT_THAT(ledger_.ApplyReport(Report({}), At(5)), ElementsAre(id));
}

TEST_F(TicketLedgerTest, TicketThatBeganAndEndedBetweenTwoReportsIsEnded) {
  const TicketId id = ledger_.Grant(kWorker, RequestId("r"), At(0));
  EXPECT_THAT(ledger_.ApplyReport(Report({}, {id}), At(1)), ElementsAre(id));
  EXPECT_THAT(ledger_.ApplyReport(Report({}, {id}), At(1)), IsEmpty());  // The report came twice.
}

TEST_F(TicketLedgerTest, ReportOfAnotherWorkerEndsNothing) {
  const TicketId id = ledger_.Grant(kWorker, RequestId("r"), At(0));
  ledger_.Grant(NameOf("b"), RequestId("r"), At(0));
  WorkerReport report = Report({}, {id});
  report.name = NameOf("b");
  EXPECT_THAT(ledger_.ApplyReport(report, At(1)), IsEmpty());
  EXPECT_NE(ledger_.Find(id), nullptr);
}

TEST_F(TicketLedgerTest, KnowsWhichRequestsAreOnTheirWay) {
  const TicketId id = ledger_.Grant(kWorker, RequestId("r"), At(0));
  EXPECT_EQ(ledger_.Unseen({RequestId("r")}).size(), 1u);
  EXPECT_TRUE(ledger_.Unseen({RequestId("other")}).empty());
  ledger_.ApplyReport(Report({id}), At(1));
  EXPECT_TRUE(ledger_.Unseen({RequestId("r")}).empty());
}

TEST_F(TicketLedgerTest, LostWorkerTakesItsTicketsAlong) {
  const TicketId a = ledger_.Grant(kWorker, RequestId("r"), At(0));
  const TicketId b = ledger_.Grant(kWorker, RequestId("r"), At(0));
  const TicketId other = ledger_.Grant(NameOf("b"), RequestId("r"), At(0));
  EXPECT_THAT(ledger_.EndWorker(kWorker), ElementsAre(a, b));
  EXPECT_NE(ledger_.Find(other), nullptr);
  EXPECT_EQ(ledger_.size(), 1u);
}

}  // namespace
}  // namespace lockstep::scheduler
