#include "services/scheduler/accounting.h"

#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using base::TicketId;

const WorkerName kWorker = NameOf("a");

class AccountingTest : public testing::Test {
 protected:
  AccountingTest() { Make({.horizon_tokens = 32}); }
  void Make(Accounting::Options options) {
    accounting_.emplace(options);
    accounting_->AddWorker(kWorker, RegistrationOf("a").capacity);
  }
  // 100 prompt tokens are 6 whole blocks; with 32 more they need 9.
  static Demand Sample(uint64_t prefix, int64_t new_tokens = 1000) {
    return {
        .length = 100, .prompt_tokens = 100, .new_tokens_max = new_tokens, .prefix_hash = prefix};
  }
  std::optional<Accounting> accounting_;
};

TEST_F(AccountingTest, PromptIsChargedOncePerPrefix) {
  accounting_->Reserve(kWorker, TicketId(1), Sample(7));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 9);
  accounting_->Reserve(kWorker, TicketId(2), Sample(7));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 12);
  accounting_->Reserve(kWorker, TicketId(3), Sample(8));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 21);
  accounting_->Release(kWorker, TicketId(1));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 18);
  accounting_->Release(kWorker, TicketId(2));
  accounting_->Release(kWorker, TicketId(3));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 0);
}

TEST_F(AccountingTest, ChargesAtMostTheHorizonOfNewTokens) {
  accounting_->Reserve(kWorker, TicketId(1), Sample(7, 4));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 7);
  accounting_->Reserve(kWorker, TicketId(2), Sample(8, 1 << 20));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 16);
}

TEST_F(AccountingTest, TruthReplacesTheEstimate) {
  accounting_->Reserve(kWorker, TicketId(1), Sample(7));
  accounting_->Reserve(kWorker, TicketId(2), Sample(7));
  // Ticket 1 has begun with 7 blocks: 2 of its 9 are still to come, and 2's own 3.
  const HeldTicket held[] = {{.ticket = TicketId(1), .kv_blocks = 7}};
  accounting_->ApplyTruth(kWorker, 93, held);
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 7 + 2 + 3);
  // It has outgrown its horizon: only the truth counts.
  const HeldTicket grown[] = {{.ticket = TicketId(1), .kv_blocks = 30}};
  accounting_->ApplyTruth(kWorker, 70, grown);
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 30 + 0 + 3);
  // Preempted: charged like one that has not begun.
  const HeldTicket preempted[] = {{.ticket = TicketId(1), .kv_blocks = 0}};
  accounting_->ApplyTruth(kWorker, 100, preempted);
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 12);
}

TEST_F(AccountingTest, ReleaseFreesUsedBlocksBeforeTheNextReport) {
  accounting_->Reserve(kWorker, TicketId(1), Sample(7));
  accounting_->Reserve(kWorker, TicketId(2), Sample(7));
  const HeldTicket held[] = {{.ticket = TicketId(1), .kv_blocks = 9},
                             {.ticket = TicketId(2), .kv_blocks = 9}};
  accounting_->ApplyTruth(kWorker, 100 - 12, held);
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 12);
  accounting_->Release(kWorker, TicketId(1));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 9);
  accounting_->Release(kWorker, TicketId(2));
  EXPECT_EQ(accounting_->blocks_reserved(kWorker), 0);
}

TEST_F(AccountingTest, FitsUpToTheBlocksThatExist) {
  for (uint64_t i = 1; i <= 11; ++i) {
    ASSERT_TRUE(accounting_->Fits(kWorker, Sample(i))) << i;
    accounting_->Reserve(kWorker, TicketId(i), Sample(i));
  }
  EXPECT_FALSE(accounting_->Fits(kWorker, Sample(12)));  // 99 of 100 are promised.
  EXPECT_FALSE(accounting_->Fits(kWorker, Sample(1)));   // A shared prompt still needs 3.
}

TEST_F(AccountingTest, OvercommitPromisesMoreThanExists) {
  Make({.horizon_tokens = 32, .overcommit_percent = 200});
  uint64_t granted = 0;
  while (accounting_->Fits(kWorker, Sample(granted + 1))) {
    ++granted;
    accounting_->Reserve(kWorker, TicketId(granted), Sample(granted));
  }
  EXPECT_EQ(granted, 22u);
}

TEST_F(AccountingTest, EmptyWorkerTakesWhateverFitsItAlone) {
  const Demand whole{
      .length = 1500, .prompt_tokens = 1500, .new_tokens_max = 100, .prefix_hash = 1};
  ASSERT_EQ(BlocksWhole(whole, 16), 100);
  EXPECT_TRUE(accounting_->Fits(kWorker, whole));
  // Also when the worker's last report still shows blocks in use.
  accounting_->ApplyTruth(kWorker, 10, {});
  EXPECT_TRUE(accounting_->Fits(kWorker, whole));
  Demand more = whole;
  more.new_tokens_max += 1;
  EXPECT_FALSE(accounting_->Fits(kWorker, more));
}

TEST_F(AccountingTest, SequencesMaxBoundsTickets) {
  accounting_->RemoveWorker(kWorker);
  WorkerCapacity capacity = RegistrationOf("a").capacity;
  capacity.sequences_max = 2;
  accounting_->AddWorker(kWorker, capacity);
  accounting_->Reserve(kWorker, TicketId(1), Sample(1));
  EXPECT_TRUE(accounting_->Fits(kWorker, Sample(1)));
  accounting_->Reserve(kWorker, TicketId(2), Sample(1));
  EXPECT_FALSE(accounting_->Fits(kWorker, Sample(1)));
}

TEST_F(AccountingTest, RemovedWorkerTakesItsChargesAlong) {
  accounting_->Reserve(kWorker, TicketId(1), Sample(1));
  accounting_->Adopt(kWorker, TicketId(2), 5);
  EXPECT_EQ(accounting_->ticket_count(), 2u);
  accounting_->RemoveWorker(kWorker);
  EXPECT_EQ(accounting_->ticket_count(), 0u);
  EXPECT_EQ(accounting_->blocks_charged(), 0);
  accounting_->Release(kWorker, TicketId(1));  // Too late, and harmless.
  EXPECT_FALSE(accounting_->Fits(kWorker, Sample(1)));
}

}  // namespace
}  // namespace lockstep::scheduler
