#include "services/worker/lease_fence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::worker {

LeaseFence::LeaseFence(std::string cluster_id, base::WorkerId worker, const base::Clock* clock)
    : clock_(clock), identity_{std::move(cluster_id), std::move(worker), base::Incarnation()} {}

void LeaseFence::Registered(base::Incarnation incarnation, absl::Duration lease,
                            uint64_t scheduler_epoch, base::Epoch admission_epoch) {
  base::MutexLock lock(&mutex_);
  identity_.incarnation = incarnation;
  lease_ = lease;
  open_ = true;
  last_tick_ = clock_->Now();
  scheduler_epoch_ = std::max(scheduler_epoch_, scheduler_epoch);
  admission_epoch_ = std::max(admission_epoch_, admission_epoch);
}

void LeaseFence::Close() {
  base::MutexLock lock(&mutex_);
  open_ = false;
}

bool LeaseFence::StalledLocked(absl::Time now) const { return now - last_tick_ > lease_; }

bool LeaseFence::Tick() {
  base::MutexLock lock(&mutex_);
  if (!open_) return false;
  const absl::Time now = clock_->Now();
  if (StalledLocked(now)) open_ = false;
  last_tick_ = now;
  return open_;
}

bool LeaseFence::MaySend() {
  base::MutexLock lock(&mutex_);
  if (open_ && StalledLocked(clock_->Now())) open_ = false;
  return open_;
}

absl::Status LeaseFence::CheckIdentity(const Identity& identity) const {
  base::MutexLock lock(&mutex_);
  if (!open_) return absl::FailedPreconditionError("this worker has no lease");
  if (identity.cluster_id != identity_.cluster_id) {
    return absl::FailedPreconditionError(absl::StrCat("cluster_id: the call is for \"",
                                                      identity.cluster_id, "\", this is \"",
                                                      identity_.cluster_id, "\""));
  }
  if (identity.worker != identity_.worker) {
    return absl::FailedPreconditionError(absl::StrCat("worker_id: the call is for \"",
                                                      identity.worker.value(), "\", this is \"",
                                                      identity_.worker.value(), "\""));
  }
  if (identity.incarnation != identity_.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("incarnation: the call is for ",
                                                      identity.incarnation.value(), ", this is ",
                                                      identity_.incarnation.value()));
  }
  return absl::OkStatus();
}

absl::Status LeaseFence::CheckTicketEpoch(base::Epoch epoch) const {
  base::MutexLock lock(&mutex_);
  if (epoch < admission_epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("ticket.epoch: ", epoch.value(),
                                                      " is older than the admission epoch ",
                                                      admission_epoch_.value()));
  }
  return absl::OkStatus();
}

absl::Status LeaseFence::AdvanceEpochs(uint64_t scheduler_epoch, base::Epoch admission_epoch) {
  base::MutexLock lock(&mutex_);
  if (scheduler_epoch < scheduler_epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("scheduler_epoch: ", scheduler_epoch,
                                                      " is older than ", scheduler_epoch_,
                                                      ", which was seen before"));
  }
  scheduler_epoch_ = scheduler_epoch;
  admission_epoch_ = std::max(admission_epoch_, admission_epoch);
  return absl::OkStatus();
}

Identity LeaseFence::identity() const {
  base::MutexLock lock(&mutex_);
  return identity_;
}

bool LeaseFence::open() const {
  base::MutexLock lock(&mutex_);
  return open_;
}

}  // namespace lockstep::worker
