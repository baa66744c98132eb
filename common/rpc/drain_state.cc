#include "common/rpc/drain_state.h"

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/base/check.h"

namespace lockstep::rpc {

absl::StatusOr<DrainState::Permit> DrainState::Admit() {
  base::MutexLock lock(&mutex_);
  if (draining_) return absl::UnavailableError("draining: no new work is taken here");
  ++running_count_;
  return Permit(this);
}

bool DrainState::BeginDrain() {
  base::MutexLock lock(&mutex_);
  const bool first = !draining_;
  draining_ = true;
  if (running_count_ == 0) drained_.NotifyAll();
  return first;
}

bool DrainState::WaitDrained(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  base::MutexLock lock(&mutex_);
  while (!draining_ || running_count_ > 0) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    drained_.WaitFor(&mutex_, left);
  }
  return true;
}

DrainState::Phase DrainState::phase() const {
  base::MutexLock lock(&mutex_);
  if (!draining_) return Phase::kServing;
  return running_count_ > 0 ? Phase::kDraining : Phase::kDrained;
}

size_t DrainState::running_count() const {
  base::MutexLock lock(&mutex_);
  return running_count_;
}

void DrainState::Leave() {
  base::MutexLock lock(&mutex_);
  LOCKSTEP_CHECK_GT(running_count_, size_t{0});
  if (--running_count_ == 0 && draining_) drained_.NotifyAll();
}

}  // namespace lockstep::rpc
