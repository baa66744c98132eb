// Histories of the router's core under simulated faults. A failure prints its seed; the same seed
// gives the same history.

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/sim/router_sim.h"

namespace lockstep::router {
namespace {

struct Totals {
  double resumptions = 0;
  double stale = 0;
  double duplicates = 0;
  double ahead = 0;
  int completed = 0;
};

Totals RunSeeds(uint64_t first, uint64_t count, const SimFaults& faults) {
  Totals totals;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    RouterSim sim({.seed = seed, .faults = faults});
    sim.Run();
    EXPECT_TRUE(sim.problems().empty()) << absl::StrJoin(sim.problems(), "\n");
    if (testing::Test::HasFailure()) break;
    for (const FailoverCause cause :
         {FailoverCause::kLeaseLost, FailoverCause::kStreamBroken, FailoverCause::kHandOff,
          FailoverCause::kWorkerError, FailoverCause::kBadFrame}) {
      totals.resumptions += sim.metrics().resumptions[cause].value();
    }
    totals.stale += sim.metrics().stale_deltas.value();
    totals.duplicates += sim.metrics().duplicate_positions.value();
    totals.completed += sim.completed();
    totals.ahead += sim.metrics().started_ahead.value();
    EXPECT_EQ(sim.metrics().bit_mismatches.value(), 0);
  }
  return totals;
}

constexpr uint64_t kSeeds = 100;

TEST(RouterSimTest, QuietRunCompletesEverythingWithoutAMove) {
  const Totals totals = RunSeeds(1, 20, {});
  EXPECT_EQ(totals.completed, 20 * 60);
  EXPECT_GT(totals.ahead, 0);
  EXPECT_EQ(totals.resumptions, 0);
}

TEST(RouterSimTest, KilledWorkersChangeNoBit) {
  const Totals totals = RunSeeds(1000, kSeeds, {.worker_killed = 0.3});
  EXPECT_EQ(totals.completed, static_cast<int>(kSeeds) * 60);
  EXPECT_GT(totals.resumptions, 100);
}

TEST(RouterSimTest, ZombiesOfStalledWorkersDisturbNothing) {
  const Totals totals = RunSeeds(2000, kSeeds, {.worker_stalled = 0.3});
  EXPECT_EQ(totals.completed, static_cast<int>(kSeeds) * 60);
  EXPECT_GT(totals.resumptions, 100);
  EXPECT_GT(totals.stale, 0) << "zombies did speak";
}

TEST(RouterSimTest, RepeatedAndMissingFramesChangeNoBit) {
  const Totals totals = RunSeeds(
      3000, kSeeds, {.frame_repeated = 0.2, .frame_dropped = 0.02, .position_repeated = 0.2});
  EXPECT_EQ(totals.completed, static_cast<int>(kSeeds) * 60);
  EXPECT_GT(totals.duplicates, 100);
  EXPECT_GT(totals.resumptions, 100) << "gaps did occur";
}

TEST(RouterSimTest, DrainsRefusalsAndBrokenStreamsChangeNoBit) {
  const Totals totals =
      RunSeeds(4000, kSeeds, {.stream_broken = 0.3, .worker_drained = 0.1, .start_refused = 0.2});
  EXPECT_EQ(totals.completed, static_cast<int>(kSeeds) * 60);
  EXPECT_GT(totals.resumptions, 100);
}

TEST(RouterSimTest, EverythingAtOnceStillEndsEachSequenceOnce) {
  const Totals totals = RunSeeds(5000, 2 * kSeeds,
                                 {.worker_killed = 0.15,
                                  .worker_stalled = 0.1,
                                  .stream_broken = 0.1,
                                  .worker_drained = 0.05,
                                  .scheduler_lost = 0.2,
                                  .frame_repeated = 0.05,
                                  .frame_dropped = 0.01,
                                  .position_repeated = 0.05,
                                  .start_refused = 0.05,
                                  .sequence_cancelled = 0.1,
                                  .gateway_lost = 0.02});
  EXPECT_GT(totals.completed, static_cast<int>(kSeeds) * 60);
  EXPECT_GT(totals.resumptions, 100);
}

}  // namespace
}  // namespace lockstep::router
