#include "services/router/worker_patience.h"

#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

TEST(WorkerPatienceTest, EndsBeforeTheLeaseDoes) {
  EXPECT_EQ(PatienceFor(absl::Seconds(3)),
            (WorkerPatience{absl::Seconds(1), absl::Milliseconds(1500)}));
  for (const int tenths : {13, 20, 30, 100, 600}) {
    const absl::Duration lease = absl::Milliseconds(100) * tenths;
    const WorkerPatience patience = PatienceFor(lease);
    EXPECT_LT(patience.silence + patience.answer, lease) << lease;
  }
}

TEST(WorkerPatienceTest, NeverPingsMoreOftenThanAWorkerAllows) {
  EXPECT_EQ(PatienceFor(absl::Milliseconds(100)).silence, kSilenceMin);
}

TEST(WorkerPatienceTest, EachBatchBringsTheLeaseThatTheSchedulerTold) {
  CoreHarness h;
  WorkerState a = State("a");
  a.lease = absl::Seconds(7);
  h.Connect({a});
  h.Open(1);
  const RouterActions asked = h.core.TakeActions();
  h.core.TicketGranted(asked.admits.at(0).handle, h.TicketFor(Key("a")));
  EXPECT_EQ(h.core.TakeActions().workers.at(0).lease, absl::Seconds(7));
}

}  // namespace
}  // namespace lockstep::router
