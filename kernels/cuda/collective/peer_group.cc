#include "kernels/cuda/collective/peer_group.h"

#include <algorithm>
#include <memory>
#include <set>
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
// Of one turn, of all ranks' slots: with two ranks 512 rows of 4096 outputs, about as many as one
// message from each to each is faster for than two meetings.
constexpr size_t kInboxBytes = size_t{16} << 20;

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
      share_devices(std::set<int>(this->devices.begin(), this->devices.end()).size() <
                    this->devices.size()),
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
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemsetAsync(flags_.as<void>(), 0, flags_.bytes(), stream), kWhat));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(stream), kWhat));
  PeerFlags* const flags = flags_.as<PeerFlags>();
  MeetingPoint& point = state_->point;
  point.Show(rank_, flags);
  if (!point.Meet(rank_)) return point.status();
  meeting_.wait = {
      .alarm = state_->alarm.as<PeerAlarm>(),
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
  LOCKSTEP_RETURN_IF_ERROR(ReserveInboxes());
  MeetingPoint& point = state_->point;
  point.Show(rank_, &own_);
  if (!point.Meet(rank_)) return point.status();
  for (int rank = 0; rank < ranks(); ++rank) {
    const Reservation& theirs = point.shown<Reservation>(rank);
    const size_t r = static_cast<size_t>(rank);
    for (size_t turn = 0; turn < buffers_.size(); ++turn) {
      shown_[turn][r] = theirs.buffers[turn];
      PeerInbox& inbox = inboxes_[turn];
      inbox.theirs[rank] = theirs.inboxes[turn] + static_cast<size_t>(rank_) * inbox.slot;
    }
    shares_[r] = theirs.share;
  }
  return point.Meet(rank_) ? absl::OkStatus() : point.status();
}

absl::Status PeerEnd::ReserveInboxes() {
  const size_t slot = kInboxBytes / sizeof(float) / static_cast<size_t>(ranks());
  for (size_t turn = 0; turn < inboxes_.size(); ++turn) {
    Buffer& buffer = inbox_buffers_[turn];
    LOCKSTEP_ASSIGN_OR_RETURN(buffer, AllocateDevice(kInboxBytes, "inboxes for ranks' sums"));
    static_assert(PeerInbox::kNotThere == 0xFFFFFFFF, "as memset writes it");
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(cudaMemsetAsync(buffer.as<void>(), 0xFF, buffer.bytes(), stream_), kWhat));
    own_.inboxes[turn] = buffer.as<float>();
    inboxes_[turn] = {.own = buffer.as<float>(), .slot = slot, .wait = meeting_.wait};
  }
  return StatusOfCuda(cudaStreamSynchronize(stream_), kWhat);
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

bool PeerEnd::Exchanges(size_t elements) const {
  return ranks() > 1 && !state_->share_devices && elements <= inboxes_[0].slot;
}

const PeerInbox& PeerEnd::NextInbox() {
  inbox_turn_ = 1 - inbox_turn_;
  return inboxes_[1 - inbox_turn_];
}

absl::Status PeerEnd::AddShown(const ShownRows& rows) {
  const size_t elements =
      static_cast<size_t>(rows.use.rows) * ExchangedRowElements(rows.use.outputs);
  return Exchanges(elements) && rows.use.outputs <= kExchangedOutputsMax ? ExchangeShown(rows)
                                                                         : ScatterShown(rows);
}

absl::Status PeerEnd::ExchangeShown(const ShownRows& rows) {
  return StatusOfCuda(ExchangeRows({.inbox = NextInbox(),
                                    .parts = buffers_[1 - turn_].as<float>(),
                                    .part_stride = rows.part_stride,
                                    .part_count = rows.part_count,
                                    .use = rows.use},
                                   stream_),
                      "exchange of sums");
}

absl::Status PeerEnd::ScatterShown(const ShownRows& rows) {
  const int segments = rows.part_count * ranks();
  if (segments > kPeersMax) {
    return absl::InternalError(absl::StrCat(segments, " segments are too many to scatter"));
  }
  const size_t own = static_cast<size_t>(rank_);
  const size_t count = static_cast<size_t>(ranks());
  const size_t row_count = static_cast<size_t>(rows.use.rows);
  const size_t outputs = static_cast<size_t>(rows.use.outputs);
  ScatterSumsCall call = {.sums = {.count = segments},
                          .ranks = ranks(),
                          .begin = row_count * own / count * outputs,
                          .end = row_count * (own + 1) / count * outputs};
  for (int segment = 0; segment < segments; ++segment) {
    const size_t rank = static_cast<size_t>(segment / rows.part_count);
    const size_t part = static_cast<size_t>(segment % rows.part_count);
    call.sums.segments[segment] = shown_[1 - turn_][rank] + part * rows.part_stride;
  }
  // The buffer of the turn before: who read it has come to the meeting.
  for (size_t rank = 0; rank < count; ++rank) {
    call.to[rank] = reinterpret_cast<uint16_t*>(shown_[turn_][rank]);
  }
  LOCKSTEP_RETURN_IF_ERROR(Meet());
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(ScatterSums(call, stream_), "scattering of sums"));
  LOCKSTEP_RETURN_IF_ERROR(Meet());
  return StatusOfCuda(UseRounded(call.to[own], rows.use, stream_), "use of sums");
}

absl::Status PeerEnd::Meet() { return StatusOfCuda(MeetPeers(meeting_, stream_), kWhat); }

void PeerEnd::AllReduce(const float* x, size_t count, float* y) {
  if (Exchanges(count)) {
    return Keep(StatusOfCuda(ExchangeSums(NextInbox(), x, count, y, stream_), kWhat));
  }
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
