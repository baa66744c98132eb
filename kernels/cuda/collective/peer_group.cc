#include "kernels/cuda/collective/peer_group.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr char kWhat[] = "collective";
// Loading and certifying a model takes minutes on a busy machine.
constexpr absl::Duration kLoadPatience = absl::Minutes(15);

uint32_t Raised(const PeerState& state) {
  return *static_cast<const volatile uint32_t*>(&state.alarm.as<PeerAlarm>()->raised);
}

// Of the group; takes over what a kernel's alarm says.
absl::Status StatusOf(PeerState* state) {
  const uint32_t raised = Raised(*state);
  if (raised != 0 && raised != PeerAlarm::kAbandoned) {
    state->point.Abandon(absl::DeadlineExceededError(absl::StrCat(
        "rank ", raised - 1, " of ", state->point.ranks(), " did not come to a collective within ",
        absl::FormatDuration(state->patience))));
  }
  return state->point.status();
}

class PeerGroup final : public CollectiveGroup {
 public:
  explicit PeerGroup(std::shared_ptr<PeerState> state) : state_(std::move(state)) {}

  int ranks() const override { return state_->point.ranks(); }
  std::unique_ptr<Collective> End(int rank) override {
    LOCKSTEP_CHECK(rank >= 0 && rank < ranks()) << "rank " << rank << " of " << ranks();
    return std::make_unique<PeerEnd>(state_, rank);
  }
  // Kernels that wait look at the alarm.
  void Abandon(const absl::Status& status) override {
    state_->point.Abandon(status);
    volatile uint32_t* const raised = &state_->alarm.as<PeerAlarm>()->raised;
    if (*raised == 0) *raised = PeerAlarm::kAbandoned;
  }
  absl::Status status() const override { return StatusOf(state_.get()); }

 private:
  const std::shared_ptr<PeerState> state_;
};

absl::Status EnableReading(int device, int peer) {
  if (device == peer) return absl::OkStatus();
  int can = 0;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaDeviceCanAccessPeer(&can, device, peer), kWhat));
  if (can == 0) {
    return absl::FailedPreconditionError(absl::StrCat("tensor_parallel: device ", device,
                                                      " cannot read the memory of device ", peer));
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return StatusOfCuda(error, kWhat);
  cudaGetLastError();  // It is no failure, and must not be found by who asks next.
  return absl::OkStatus();
}

}  // namespace

PeerState::PeerState(std::vector<int> devices, absl::Duration patience)
    : devices(std::move(devices)),
      patience(patience),
      point(static_cast<int>(this->devices.size()), kLoadPatience) {}

PeerEnd::PeerEnd(std::shared_ptr<PeerState> state, int rank)
    : state_(std::move(state)), rank_(rank) {}

absl::Status PeerEnd::Open(cudaStream_t stream) {
  stream_ = stream;
  for (const int peer : state_->devices) {
    LOCKSTEP_RETURN_IF_ERROR(EnableReading(device(), peer));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(flags_, AllocateDevice(sizeof(PeerFlags), kWhat));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaMemset(flags_.as<void>(), 0, flags_.bytes()), kWhat));
  PeerFlags* const flags = flags_.as<PeerFlags>();
  MeetingPoint& point = state_->point;
  point.Show(rank_, flags);
  if (!point.Meet(rank_)) return point.status();
  meeting_ = {.alarm = state_->alarm.as<PeerAlarm>(),
              .rank = rank_,
              .ranks = ranks(),
              .patience_ns = static_cast<uint64_t>(absl::ToInt64Nanoseconds(state_->patience))};
  for (int rank = 0; rank < ranks(); ++rank) {
    meeting_.flags[rank] = const_cast<PeerFlags*>(&point.shown<PeerFlags>(rank));
  }
  return point.Meet(rank_) ? absl::OkStatus() : point.status();
}

absl::Status PeerEnd::Reserve(size_t bytes, const ColumnShare& share) {
  own_.share = share;
  for (size_t turn = 0; turn < buffers_.size(); ++turn) {
    LOCKSTEP_ASSIGN_OR_RETURN(buffers_[turn], AllocateDevice(bytes, "sums that ranks exchange"));
    own_.buffers[turn] = buffers_[turn].as<float>();
  }
  reserved_bytes_ = bytes;
  MeetingPoint& point = state_->point;
  point.Show(rank_, &own_);
  if (!point.Meet(rank_)) return point.status();
  for (int rank = 0; rank < ranks(); ++rank) {
    const Reservation& theirs = point.shown<Reservation>(rank);
    const size_t r = static_cast<size_t>(rank);
    for (size_t turn = 0; turn < buffers_.size(); ++turn) shown_[turn][r] = theirs.buffers[turn];
    shares_[r] = theirs.share;
  }
  return point.Meet(rank_) ? absl::OkStatus() : point.status();
}

absl::Status PeerEnd::InTurn(absl::FunctionRef<absl::Status()> load) {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_) {
      const absl::Status status = load();
      if (!status.ok()) {
        state_->point.Abandon(status);
        return status;
      }
    }
    if (!state_->point.Meet(rank_)) return state_->point.status();
  }
  return absl::OkStatus();
}

float* PeerEnd::BeginShow() {
  turn_ = 1 - turn_;
  return buffers_[1 - turn_].as<float>();
}

absl::Status PeerEnd::Meet() { return StatusOfCuda(MeetPeers(meeting_, stream_), kWhat); }

void PeerEnd::AllReduce(const float* x, size_t count, float* y) {
  const size_t bytes = count * sizeof(float);
  LOCKSTEP_CHECK_LE(bytes, reserved_bytes_);
  Keep(StatusOfCuda(
      cudaMemcpyAsync(buffers_[turn_].as<void>(), x, bytes, cudaMemcpyDeviceToDevice, stream_),
      kWhat));
  Keep(Meet());
  SharedSums sums = {.count = ranks()};
  for (int rank = 0; rank < ranks(); ++rank) {
    sums.segments[rank] = shown_[turn_][static_cast<size_t>(rank)];
  }
  Keep(StatusOfCuda(ReduceShared(sums, count, y, stream_), kWhat));
  Keep(Meet());
}

void PeerEnd::AllGather(const ColumnShare& share, float* y, size_t y_stride) {
  const size_t bytes =
      static_cast<size_t>(share.rows) * static_cast<size_t>(share.columns) * sizeof(float);
  LOCKSTEP_CHECK_LE(bytes, reserved_bytes_);
  if (share.x != buffers_[turn_].as<float>()) {
    Keep(StatusOfCuda(cudaMemcpyAsync(buffers_[turn_].as<void>(), share.x, bytes,
                                      cudaMemcpyDeviceToDevice, stream_),
                      kWhat));
  }
  Keep(Meet());
  GatherSharedCall call = {.ranks = ranks(), .rows = share.rows, .y = y, .y_stride = y_stride};
  for (int rank = 0; rank < ranks(); ++rank) {
    const size_t r = static_cast<size_t>(rank);
    call.x[r] = shown_[turn_][r];
    call.first_column[r] = shares_[r].first_column;
    call.columns[r] = shares_[r].columns;
  }
  Keep(StatusOfCuda(GatherShared(call, stream_), kWhat));
  Keep(Meet());
}

absl::Status PeerEnd::status() const {
  LOCKSTEP_RETURN_IF_ERROR(status_);
  return StatusOf(state_.get());
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreatePeerGroup(std::vector<int> devices,
                                                                 absl::Duration patience) {
  const int ranks = static_cast<int>(devices.size());
  LOCKSTEP_RETURN_IF_ERROR(CheckRankCount(ranks));
  if (ranks > kPeersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks = ", ranks, ": at most ", kPeersMax, " GPUs share a model"));
  }
  int count = 0;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaGetDeviceCount(&count), kWhat));
  const int last = *std::max_element(devices.begin(), devices.end());
  if (last >= count) {
    return absl::InvalidArgumentError(absl::StrCat("tensor_parallel = ", ranks, ": needs device ",
                                                   last, ", and the process sees ", count));
  }
  auto state = std::make_shared<PeerState>(std::move(devices), patience);
  LOCKSTEP_ASSIGN_OR_RETURN(state->alarm, AllocatePinned(sizeof(PeerAlarm), kWhat));
  std::construct_at(state->alarm.as<PeerAlarm>());
  return std::make_shared<PeerGroup>(std::move(state));
}

}  // namespace lockstep::kernels::cuda
