#include "kernels/collective/meeting_point.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::kernels {
namespace {

constexpr int kPatienceSlices = 10;

}  // namespace

absl::Status CheckRankCount(int ranks) {
  if (ranks >= 1 && ranks <= kRanksMax && std::has_single_bit(static_cast<unsigned>(ranks))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ranks = ", ranks, ": must be a power of two in [1, ", kRanksMax, "]"));
}

MeetingPoint::MeetingPoint(int ranks, absl::Duration patience)
    : patience_(patience), shown_(static_cast<size_t>(ranks)), here_(shown_.size(), false) {}

bool MeetingPoint::Meet(int rank) {
  base::MutexLock lock(&mutex_);
  if (!status_.ok()) return false;
  here_[static_cast<size_t>(rank)] = true;
  if (++arrived_ == ranks()) {
    arrived_ = 0;
    here_.assign(here_.size(), false);
    ++round_;
    all_here_.NotifyAll();
    return true;
  }
  const uint64_t round = round_;
  // Nobody notifies but for what is waited for here. A process that was stopped meanwhile has lost
  // one slice, however long it stood: its ranks still get the others.
  int slices = 0;
  while (round_ == round && status_.ok()) {
    if (all_here_.WaitFor(&mutex_, patience_ / kPatienceSlices)) continue;
    if (++slices == kPatienceSlices && round_ == round) {
      Fail(absl::DeadlineExceededError(Missing()));
    }
  }
  return round_ != round;
}

void MeetingPoint::Abandon(const absl::Status& status) {
  base::MutexLock lock(&mutex_);
  Fail(status);
}

absl::Status MeetingPoint::status() const {
  base::MutexLock lock(&mutex_);
  return status_;
}

void MeetingPoint::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
  all_here_.NotifyAll();
}

std::string MeetingPoint::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!here_[static_cast<size_t>(rank)]) missing.push_back(rank);
  }
  return absl::StrCat("rank ", absl::StrJoin(missing, ", "), " of ", ranks(),
                      " did not come to a collective within ", absl::FormatDuration(patience_));
}

}  // namespace lockstep::kernels
