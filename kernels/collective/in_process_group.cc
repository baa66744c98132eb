#include "kernels/collective/in_process_group.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/collective/meeting_point.h"

namespace lockstep::kernels {
namespace {

// Elements added at a time, so that they stay in the first-level cache.
constexpr size_t kSlice = 1024;

class InProcessEnd final : public Collective {
 public:
  InProcessEnd(std::shared_ptr<MeetingPoint> point, int rank)
      : point_(std::move(point)), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return point_->ranks(); }
  absl::Status status() const override { return point_->status(); }

  void AllReduce(const float* x, size_t count, float* y) override {
    sums_.resize(count);
    share_ = {.x = x};
    point_->Show(rank_, &share_);
    if (!point_->Meet(rank_)) return;
    for (size_t first = 0; first < count; first += kSlice) {
      Sum(0, ranks(), first, std::min(kSlice, count - first), sums_.data() + first);
    }
    // What others still read is not overwritten.
    if (!point_->Meet(rank_)) return;
    std::memcpy(y, sums_.data(), count * sizeof(float));
  }

  void AllGather(const ColumnShare& share, float* y, size_t y_stride) override {
    share_ = share;
    point_->Show(rank_, &share_);
    if (!point_->Meet(rank_)) return;
    for (int from = 0; from < ranks(); ++from) {
      const ColumnShare& other = point_->shown<ColumnShare>(from);
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
      std::memcpy(sum, point_->shown<ColumnShare>(begin).x + first, length * sizeof(float));
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
  ColumnShare share_;  // Others read it, also when this rank has given up.
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
  LOCKSTEP_RETURN_IF_ERROR(CheckRankCount(ranks));
  return std::make_unique<InProcessGroup>(ranks, patience);
}

}  // namespace lockstep::kernels
