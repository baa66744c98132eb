#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/scheduler_world.h"

// Goal: what the scheduler promises holds in every history, not only in those that somebody thought
// of. Method: the real core among simulated workers, routers and messages; each seed is one
// history, and a checker watches every event.
namespace lockstep::scheduler::sim {
namespace {

using testing::IsEmpty;

World::Tally RunSeeds(uint64_t first, uint64_t count, WorldOptions options) {
  World::Tally sum;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    options.seed = seed;
    World world(options);
    world.Run();
    EXPECT_THAT(world.problems(), IsEmpty()) << "seed " << seed;
    if (!world.problems().empty()) break;
    const World::Tally& tally = world.tally();
    sum.grants += tally.grants;
    sum.resumptions += tally.resumptions;
    sum.lost += tally.lost;
    sum.restarts += tally.restarts;
    sum.aborted += tally.aborted;
    sum.aged_waits += tally.aged_waits;
    sum.ahead += tally.ahead;
    sum.kills += tally.kills;
    sum.stalls += tally.stalls;
    sum.drains += tally.drains;
    sum.operations_finished += tally.operations_finished;
    sum.violations += tally.violations;
  }
  return sum;
}

TEST(SchedulerSimTest, QuietClusterRunsEverythingAndLosesNobody) {
  const World::Tally tally = RunSeeds(1, 100, {});
  EXPECT_GT(tally.grants, 10000);
  EXPECT_GT(tally.aged_waits, 0);
  EXPECT_GT(tally.ahead, 500);
  EXPECT_EQ(tally.lost, 0);
  EXPECT_EQ(tally.resumptions, 0);
  EXPECT_EQ(tally.violations, 0);
}

TEST(SchedulerSimTest, LostAndRepeatedHeartbeatsChangeNothingThatIsPromised) {
  const World::Tally tally =
      RunSeeds(1000, 300, {.faults = {.heartbeat_loss = 0.3, .heartbeat_duplicate = 0.3}});
  EXPECT_GT(tally.lost, 0);
  EXPECT_GT(tally.resumptions, 0);
  EXPECT_EQ(tally.violations, 0);
}

TEST(SchedulerSimTest, DeathStallAndDrainOfWorkersLoseNoSequence) {
  const World::Tally tally = RunSeeds(2000, 300,
                                      {.faults = {.heartbeat_duplicate = 0.1,
                                                  .per_second = 1.5,
                                                  .worker_kill = true,
                                                  .worker_stall = true,
                                                  .worker_drain = true}});
  EXPECT_GT(tally.kills, 0);
  EXPECT_GT(tally.stalls, 0);
  EXPECT_GT(tally.drains, 0);
  EXPECT_GT(tally.resumptions, 0);
  EXPECT_EQ(tally.violations, 0);
}

TEST(SchedulerSimTest, RestartOfTheSchedulerLosesNoSequence) {
  const World::Tally tally = RunSeeds(
      3000, 300, {.faults = {.per_second = 1, .worker_kill = true, .scheduler_restart = true}});
  EXPECT_GT(tally.restarts, 0);
  EXPECT_EQ(tally.violations, 0);
}

TEST(SchedulerSimTest, EverythingAtOnce) {
  const World::Tally tally = RunSeeds(4000, 1000,
                                      {.faults = {.heartbeat_loss = 0.1,
                                                  .heartbeat_duplicate = 0.1,
                                                  .per_second = 2,
                                                  .worker_kill = true,
                                                  .worker_stall = true,
                                                  .worker_drain = true,
                                                  .scheduler_restart = true,
                                                  .router_restart = true,
                                                  .operations = true}});
  EXPECT_GT(tally.restarts, 0);
  EXPECT_GT(tally.aborted, 0);
  EXPECT_GT(tally.operations_finished, 0);
  EXPECT_GT(tally.ahead, 500);
  EXPECT_EQ(tally.violations, 0);
}

TEST(SchedulerSimTest, WorkerThatCutsWhereItMustNotLosesItsLeaseEachTime) {
  const World::Tally tally = RunSeeds(6000, 50, {.faults = {.cheat = 0.01}});
  EXPECT_GT(tally.violations, 0);
  EXPECT_GT(tally.lost, 0);
  EXPECT_GT(tally.resumptions, 0);
}

}  // namespace
}  // namespace lockstep::scheduler::sim
