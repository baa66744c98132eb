#include "kernels/collective/in_process_group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/mutex.h"

namespace lockstep::kernels {
namespace {

constexpr int kRanksMax = 64;
// Elements added at a time, so that they stay in the first-level cache.
constexpr size_t kSlice = 1024;

// Where ranks meet, and what each shows the others there.
class MeetingPoint {
 public:
  MeetingPoint(int ranks, absl::Duration patience)
      : patience_(patience), shown_(static_cast<size_t>(ranks)), here_(shown_.size(), false) {}

  int ranks() const { return static_cast<int>(shown_.size()); }

  // Returns when all ranks have called it; false once the group is abandoned.
  bool Meet(int rank) {
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
    // Nobody notifies but for what is waited for here.
    while (round_ == round && status_.ok()) {
      if (all_here_.WaitFor(&mutex_, patience_)) continue;
      if (round_ == round) Fail(absl::DeadlineExceededError(Missing()));
    }
    return round_ != round;
  }

  // Between two meetings, what every rank passed before the first.
  void Show(int rank, const ColumnShare& share) { shown_[static_cast<size_t>(rank)] = share; }
  const ColumnShare& shown(int rank) const { return shown_[static_cast<size_t>(rank)]; }

  void Abandon(const absl::Status& status) {
    base::MutexLock lock(&mutex_);
    Fail(status);
  }
  absl::Status status() const {
    base::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok()) status_ = status;
    all_here_.NotifyAll();
  }
  std::string Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<int> missing;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!here_[static_cast<size_t>(rank)]) missing.push_back(rank);
    }
    return absl::StrCat("rank ", absl::StrJoin(missing, ", "), " of ", ranks(),
                        " did not come to a collective within ", absl::FormatDuration(patience_));
  }

  const absl::Duration patience_;
  std::vector<ColumnShare> shown_;
  mutable base::Mutex mutex_;
  base::CondVar all_here_;
  std::vector<bool> here_ ABSL_GUARDED_BY(mutex_);
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class InProcessEnd final : public Collective {
 public:
  InProcessEnd(std::shared_ptr<MeetingPoint> point, int rank)
      : point_(std::move(point)), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return point_->ranks(); }
  absl::Status status() const override { return point_->status(); }

  void AllReduce(const float* x, size_t count, float* y) override {
    sums_.resize(count);
    point_->Show(rank_, {.x = x});
    if (!point_->Meet(rank_)) return;
    for (size_t first = 0; first < count; first += kSlice) {
      Sum(0, ranks(), first, std::min(kSlice, count - first), sums_.data() + first);
    }
    // What others still read is not overwritten.
    if (!point_->Meet(rank_)) return;
    std::memcpy(y, sums_.data(), count * sizeof(float));
  }

  void AllGather(const ColumnShare& share, float* y, size_t y_stride) override {
    point_->Show(rank_, share);
    if (!point_->Meet(rank_)) return;
    for (int from = 0; from < ranks(); ++from) {
      const ColumnShare& other = point_->shown(from);
      const size_t columns = static_cast<size_t>(other.columns);
      for (size_t row = 0; row < static_cast<size_t>(share.rows); ++row) {
        std::memcpy(y + row * y_stride + other.first_column, other.x + row * columns,
                    columns * sizeof(float));
      }
    }
    point_->Meet(rank_);
  }

 private:
  // T over ranks [begin, begin + count) of elements [first, first + length): the halves of a power
  // of two are its subtrees.
  void Sum(int begin, int count, size_t first, size_t length, float* sum) const {
    if (count == 1) {
      std::memcpy(sum, point_->shown(begin).x + first, length * sizeof(float));
      return;
    }
    const int half = count / 2;
    float right[kSlice];
    Sum(begin, half, first, length, sum);
    Sum(begin + half, half, first, length, right);
    for (size_t i = 0; i < length; ++i) sum[i] += right[i];
  }

  const std::shared_ptr<MeetingPoint> point_;
  const int rank_;
  std::vector<float> sums_;
};

class InProcessGroup final : public CollectiveGroup {
 public:
  InProcessGroup(int ranks, absl::Duration patience)
      : point_(std::make_shared<MeetingPoint>(ranks, patience)) {}

  int ranks() const override { return point_->ranks(); }
  std::unique_ptr<Collective> End(int rank) override {
    LOCKSTEP_CHECK(rank >= 0 && rank < ranks()) << "rank " << rank << " of " << ranks();
    return std::make_unique<InProcessEnd>(point_, rank);
  }
  void Abandon(const absl::Status& status) override { point_->Abandon(status); }
  absl::Status status() const override { return point_->status(); }

 private:
  const std::shared_ptr<MeetingPoint> point_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveGroup>> CreateInProcessGroup(int ranks,
                                                                      absl::Duration patience) {
  if (ranks < 1 || ranks > kRanksMax || !std::has_single_bit(static_cast<unsigned>(ranks))) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks = ", ranks, ": must be a power of two in [1, ", kRanksMax, "]"));
  }
  return std::make_unique<InProcessGroup>(ranks, patience);
}

}  // namespace lockstep::kernels
