#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/buffer.h"
#include "kernels/api/collective.h"
#include "kernels/collective/meeting_point.h"
#include "kernels/cuda/collective/peer_kernels.h"

// Ranks on GPUs of one process, which read and write each other's memory: over NVLink, or in place
// when tests let ranks share a device.
namespace lockstep::kernels::cuda {

// What all ranks of a group share.
struct PeerState {
  PeerState(std::vector<int> devices, absl::Duration patience);

  const std::vector<int> devices;  // By rank.
  const bool share_devices;        // Some ranks one.
  const absl::Duration patience;   // Of kernels.
  MeetingPoint point;              // Of the host's threads, while they load.
  Buffer alarm;                    // PeerAlarm
};

// What a rank shows of a row-parallel layer, and what becomes of the sums of all.
struct ShownRows {
  int part_count = 1;      // This rank's segments, with ranks 8 at most.
  size_t part_stride = 0;  // Elements between them.
  SumUse use;
};

// One rank's end, on one stream of its device. What a rank shows lies in two buffers that take
// turns: a rank writes the next one while slower peers may still read the one before. Example:
//   float* mine = end->BeginShow();  … kernels that write this rank's sums to it …
//   end->AddShown({.use = …});       … kernels that read what became of the sums of all …
class PeerEnd final : public Collective {
 public:
  PeerEnd(std::shared_ptr<PeerState> state, int rank);

  int device() const { return state_->devices[static_cast<size_t>(rank_)]; }
  // Makes the rank's device current on this thread, and its peers' memory readable. All ranks at
  // once. FAILED_PRECONDITION names devices that cannot read each other.
  absl::Status Open(cudaStream_t stream);
  // Room for `bytes` in each buffer, and the rank's columns of every AllGather (share.x and
  // share.rows are not looked at). All ranks at once, with equal bytes, before any other op.
  absl::Status Reserve(size_t bytes, const ColumnShare& share);

  // Lets ranks load one after the other: calls `load` when it is this rank's turn. All ranks at
  // once.
  absl::Status InTurn(absl::FunctionRef<absl::Status()> load);

  // Turns are counted when ops are enqueued, so what a graph captures has to show an even number of
  // times, as every layer of a model does, and to call AllReduce an even number of times. AllGather
  // takes no turn.
  float* BeginShow();
  // After BeginShow. All ranks with equal rows and parts: by an exchange where it pays, which they
  // all see alike, else by a scatter.
  absl::Status AddShown(const ShownRows& rows);
  // The two ways, of equal bits. One kernel, for as many elements as fit an inbox, with at most
  // kExchangedOutputsMax outputs and more than one rank; or any number of them in two meetings: a
  // rank adds its run of rows and gives every rank the rounded sums.
  absl::Status ExchangeShown(const ShownRows& rows);
  absl::Status ScatterShown(const ShownRows& rows);

  // The stream waits until all ranks' streams have come to this.
  absl::Status Meet();

  // Where the rank may put its share of the next AllGather itself.
  float* GatherBuffer() const { return buffers_[turn_].as<float>(); }

  int rank() const override { return rank_; }
  int ranks() const override { return state_->point.ranks(); }
  void AllReduce(const float* x, size_t count, float* y) override;
  void AllGather(const ColumnShare& share, float* y, size_t y_stride) override;
  absl::Status status() const override;

 private:
  struct Reservation {
    std::array<float*, 2> buffers = {};
    std::array<float*, 2> inboxes = {};
    ColumnShare share;
  };

  absl::Status ReserveInboxes();
  // Whether so many elements are exchanged. Not on a device that ranks share: there a rank that
  // waits could keep the products of another from running.
  bool Exchanges(size_t elements) const;
  const PeerInbox& NextInbox();
  // Keeps the first error: ops of the interface cannot return one.
  void Keep(absl::Status status) { status_.Update(std::move(status)); }

  const std::shared_ptr<PeerState> state_;
  const int rank_;
  cudaStream_t stream_ = nullptr;
  absl::Status status_;
  Buffer flags_;
  std::array<Buffer, 2> buffers_;
  std::array<Buffer, 2> inbox_buffers_;
  size_t reserved_bytes_ = 0;
  Reservation own_;  // Others read it while they reserve.
  PeerMeeting meeting_;
  std::array<std::array<float*, kPeersMax>, 2> shown_ = {};  // By buffer and rank.
  std::array<ColumnShare, kPeersMax> shares_ = {};           // Of AllGather, by rank.
  std::array<PeerInbox, 2> inboxes_;
  size_t turn_ = 0;
  size_t inbox_turn_ = 0;
};

// Rank r on devices[r]. A meeting of kernels ends after `patience`. INVALID_ARGUMENT unless there
// are a power of two of them, 8 at most, and the process sees each.
absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreatePeerGroup(std::vector<int> devices,
                                                                 absl::Duration patience);

}  // namespace lockstep::kernels::cuda
