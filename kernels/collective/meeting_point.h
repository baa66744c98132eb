#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "kernels/api/collective.h"

namespace lockstep::kernels {

// INVALID_ARGUMENT unless `ranks` is a power of two up to kRanksMax.
absl::Status CheckRankCount(int ranks);

// Where the threads of all ranks meet, and what each shows the others there. Thread-safe.
class MeetingPoint {
 public:
  // A rank waits `patience` for the others, without the time for which the process was stopped.
  MeetingPoint(int ranks, absl::Duration patience);

  int ranks() const { return static_cast<int>(shown_.size()); }

  // Returns when all ranks have called it. False once the group is abandoned, which it is with
  // DEADLINE_EXCEEDED when one does not come: the status names it.
  bool Meet(int rank);

  // Between two meetings: what every rank showed before the first.
  void Show(int rank, const void* what) { shown_[static_cast<size_t>(rank)] = what; }
  template <typename T>
  const T& shown(int rank) const {
    return *static_cast<const T*>(shown_[static_cast<size_t>(rank)]);
  }

  // Lets everybody go. The first status stays.
  void Abandon(const absl::Status& status);
  absl::Status status() const;

 private:
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration patience_;
  std::vector<const void*> shown_;
  mutable base::Mutex mutex_;
  base::CondVar all_here_;
  std::vector<bool> here_ ABSL_GUARDED_BY(mutex_);
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::kernels
