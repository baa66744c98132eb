#include "kernels/cuda/collective/nccl_group.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr char kWhat[] = "collective";
constexpr absl::Duration kLoadPatience = absl::Minutes(15);

absl::Status StatusOfNccl(ncclResult_t result) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("NCCL: ", ncclGetErrorString(result)));
}

}  // namespace

class NcclState {
 public:
  explicit NcclState(std::vector<ncclComm_t> communicators)
      : point(static_cast<int>(communicators.size()), kLoadPatience),
        communicators_(std::move(communicators)) {}
  ~NcclState() { End(ncclCommDestroy); }

  // Ends kernels that wait.
  void Abandon(const absl::Status& status) {
    point.Abandon(status);
    End(ncclCommAbort);
  }

  // Whether the rank's communicator lives; then calls `op` with it.
  absl::Status With(int rank, absl::FunctionRef<ncclResult_t(ncclComm_t)> op) {
    base::MutexLock lock(&mutexes_[static_cast<size_t>(rank)]);
    const ncclComm_t communicator = communicators_[static_cast<size_t>(rank)];
    return communicator == nullptr ? point.status() : StatusOfNccl(op(communicator));
  }

  MeetingPoint point;  // Of the host's threads, while they load.

 private:
  void End(ncclResult_t (*end)(ncclComm_t)) {
    for (size_t rank = 0; rank < communicators_.size(); ++rank) {
      base::MutexLock lock(&mutexes_[rank]);
      if (communicators_[rank] != nullptr) end(communicators_[rank]);
      communicators_[rank] = nullptr;
    }
  }

  std::array<base::Mutex, kPeersMax> mutexes_;  // By rank: its communicator.
  std::vector<ncclComm_t> communicators_;       // Null once ended.
};

namespace {

class NcclGroup final : public CollectiveGroup {
 public:
  explicit NcclGroup(std::shared_ptr<NcclState> state) : state_(std::move(state)) {}

  int ranks() const override { return state_->point.ranks(); }
  std::unique_ptr<Collective> End(int rank) override {
    LOCKSTEP_CHECK(rank >= 0 && rank < ranks()) << "rank " << rank << " of " << ranks();
    return std::make_unique<NcclEnd>(state_, rank);
  }
  void Abandon(const absl::Status& status) override { state_->Abandon(status); }
  absl::Status status() const override { return state_->point.status(); }

 private:
  const std::shared_ptr<NcclState> state_;
};

}  // namespace

NcclEnd::NcclEnd(std::shared_ptr<NcclState> state, int rank)
    : state_(std::move(state)), rank_(rank) {}

int NcclEnd::ranks() const { return state_->point.ranks(); }

absl::Status NcclEnd::Open(size_t bytes, const ColumnShare& share, cudaStream_t stream) {
  stream_ = stream;
  slot_ = bytes / sizeof(float);
  LOCKSTEP_ASSIGN_OR_RETURN(
      slots_,
      AllocateDevice(slot_ * sizeof(float) * static_cast<size_t>(ranks()), "sums that ranks send"));
  own_ = share;
  MeetingPoint& point = state_->point;
  point.Show(rank_, &own_);
  if (!point.Meet(rank_)) return point.status();
  for (int rank = 0; rank < ranks(); ++rank) {
    shares_[static_cast<size_t>(rank)] = point.shown<ColumnShare>(rank);
  }
  return point.Meet(rank_) ? absl::OkStatus() : point.status();
}

absl::Status NcclEnd::Swap(const float* x, size_t count,
                           const std::array<size_t, kPeersMax>& counts) {
  return state_->With(rank_, [&](ncclComm_t communicator) {
    ncclGroupStart();
    for (int rank = 0; rank < ranks(); ++rank) {
      if (rank == rank_) continue;
      ncclSend(x, count, ncclFloat, rank, communicator, stream_);
      ncclRecv(Slot(rank), counts[static_cast<size_t>(rank)], ncclFloat, rank, communicator,
               stream_);
    }
    return ncclGroupEnd();  // Says too what failed within the group.
  });
}

void NcclEnd::AllReduce(const float* x, size_t count, float* y) {
  LOCKSTEP_CHECK_LE(count, slot_);
  std::array<size_t, kPeersMax> counts;
  counts.fill(count);
  status_.Update(Swap(x, count, counts));
  if (!status_.ok()) return;
  SharedSums sums = {.count = ranks()};
  for (int rank = 0; rank < ranks(); ++rank) {
    sums.segments[rank] = rank == rank_ ? x : Slot(rank);
  }
  status_.Update(StatusOfCuda(ReduceShared(sums, count, y, stream_), kWhat));
}

void NcclEnd::AllGather(const ColumnShare& share, float* y, size_t y_stride) {
  GatherSharedCall call = {.ranks = ranks(), .rows = share.rows, .y = y, .y_stride = y_stride};
  std::array<size_t, kPeersMax> counts = {};
  for (int rank = 0; rank < ranks(); ++rank) {
    const ColumnShare& theirs = shares_[static_cast<size_t>(rank)];
    const size_t count = static_cast<size_t>(share.rows) * static_cast<size_t>(theirs.columns);
    LOCKSTEP_CHECK_LE(count, slot_);
    counts[static_cast<size_t>(rank)] = count;
    call.x[rank] = rank == rank_ ? share.x : Slot(rank);
    call.first_column[rank] = theirs.first_column;
    call.columns[rank] = theirs.columns;
  }
  status_.Update(Swap(share.x, counts[static_cast<size_t>(rank_)], counts));
  if (status_.ok()) status_.Update(StatusOfCuda(GatherShared(call, stream_), kWhat));
}

absl::Status NcclEnd::status() const {
  LOCKSTEP_RETURN_IF_ERROR(state_->point.status());
  return status_;
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateNcclGroup(const std::vector<int>& devices) {
  const int ranks = static_cast<int>(devices.size());
  LOCKSTEP_RETURN_IF_ERROR(CheckRankCount(ranks));
  if (ranks > kPeersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks = ", ranks, ": at most ", kPeersMax, " GPUs share a model"));
  }
  std::vector<ncclComm_t> communicators(devices.size());
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfNccl(ncclCommInitAll(communicators.data(), ranks, devices.data())));
  return std::make_shared<NcclGroup>(std::make_shared<NcclState>(std::move(communicators)));
}

}  // namespace lockstep::kernels::cuda
