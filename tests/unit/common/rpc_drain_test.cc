#include <signal.h>

#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/retry_advice.h"
#include "common/rpc/drain_state.h"
#include "common/rpc/signal_waiter.h"
#include "gtest/gtest.h"

namespace lockstep::rpc {
namespace {

TEST(DrainStateTest, AdmitsUntilTheDrainAndIsDrainedWithTheLastPermit) {
  DrainState state;
  std::optional<DrainState::Permit> first = state.Admit().value();
  std::optional<DrainState::Permit> second = state.Admit().value();
  EXPECT_EQ(state.running_count(), 2u);
  EXPECT_EQ(state.phase(), DrainState::Phase::kServing);
  EXPECT_TRUE(state.BeginDrain());
  EXPECT_FALSE(state.BeginDrain());
  EXPECT_EQ(state.phase(), DrainState::Phase::kDraining);
  const absl::Status refused = state.Admit().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(base::GetRetryAdvice(refused).retryable);
  first.reset();
  EXPECT_FALSE(state.WaitDrained(absl::Milliseconds(1)));
  second.reset();
  EXPECT_EQ(state.phase(), DrainState::Phase::kDrained);
  EXPECT_TRUE(state.WaitDrained(absl::ZeroDuration()));
  EXPECT_FALSE(state.Admit().ok());
}

TEST(DrainStateTest, MovedPermitIsGivenBackOnce) {
  DrainState state;
  std::optional<DrainState::Permit> permit = state.Admit().value();
  std::optional<DrainState::Permit> moved = std::move(*permit);
  permit.reset();
  EXPECT_EQ(state.running_count(), 1u);
  moved.reset();
  EXPECT_EQ(state.running_count(), 0u);
}

TEST(DrainStateTest, WaiterWakesWhenTheLastWorkEnds) {
  DrainState state;
  std::optional<DrainState::Permit> permit = state.Admit().value();
  std::jthread worker([&] {
    while (state.phase() == DrainState::Phase::kServing) std::this_thread::yield();
    permit.reset();
  });
  state.BeginDrain();
  EXPECT_TRUE(state.WaitDrained(absl::InfiniteDuration()));
}

TEST(SignalWaiterTest, SignalsAreWaitedForInOrder) {
  const auto waiter = SignalWaiter::Create().value();
  raise(SIGTERM);
  raise(SIGINT);
  EXPECT_EQ(waiter->Wait(absl::ZeroDuration()), SIGTERM);
  EXPECT_EQ(waiter->Wait(absl::ZeroDuration()), SIGINT);
  EXPECT_EQ(waiter->Wait(absl::ZeroDuration()), std::nullopt);
  EXPECT_EQ(waiter->Wait(absl::Milliseconds(2)), std::nullopt);
}

TEST(SignalWaiterTest, SignalOrInterruptWakesAWaiter) {
  const auto waiter = SignalWaiter::Create().value();
  std::jthread killer([] { kill(getpid(), SIGTERM); });
  EXPECT_EQ(waiter->Wait(), SIGTERM);
  std::jthread interrupter([&] { waiter->Interrupt(); });
  EXPECT_EQ(waiter->Wait(), 0);
}

TEST(SignalWaiterTest, OneAtATimeAndHandlersAreGivenBack) {
  for (int i = 0; i < 2; ++i) {
    const auto waiter = SignalWaiter::Create().value();
    EXPECT_EQ(SignalWaiter::Create().status().code(), absl::StatusCode::kFailedPrecondition);
    raise(SIGTERM);
    EXPECT_EQ(waiter->Wait(absl::ZeroDuration()), SIGTERM);
  }
  struct sigaction action = {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace lockstep::rpc
