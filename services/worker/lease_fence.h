#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace lockstep::worker {

// Who is addressed: one life of one worker of one cluster.
struct Identity {
  std::string cluster_id;
  base::WorkerId worker;
  base::Incarnation incarnation;
};

// Decides whether this life of the worker may still act: what it accepts (identity and epochs of
// every call) and whether it may send. After a stall longer than its lease, others have taken over
// its sequences, so it says nothing until it has registered anew; losing only the scheduler is no
// stall. Thread-safe.
class LeaseFence {
 public:
  LeaseFence(std::string cluster_id, base::WorkerId worker, const base::Clock* clock);

  // A registration was accepted.
  void Registered(base::Incarnation incarnation, absl::Duration lease, uint64_t scheduler_epoch,
                  base::Epoch admission_epoch);
  // Ends this life: nothing is accepted or sent until Registered.
  void Close();

  // Called often, by a thread that does nothing else that could block. False, and the fence is
  // closed, when the time since the last call shows that the process stood still for a lease.
  bool Tick();
  // The same test, for a thread that is about to send.
  bool MaySend();

  // FAILED_PRECONDITION naming the field when `identity` is not this life.
  absl::Status CheckIdentity(const Identity& identity) const;
  // FAILED_PRECONDITION when a newer admission epoch is known.
  absl::Status CheckTicketEpoch(base::Epoch epoch) const;
  // Takes newer epochs over; FAILED_PRECONDITION for a scheduler older than one seen before.
  absl::Status AdvanceEpochs(uint64_t scheduler_epoch, base::Epoch admission_epoch);

  Identity identity() const;
  bool open() const;

 private:
  bool StalledLocked(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const base::Clock* const clock_;
  mutable base::Mutex mutex_;
  Identity identity_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration lease_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  uint64_t scheduler_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  base::Epoch admission_epoch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::worker
