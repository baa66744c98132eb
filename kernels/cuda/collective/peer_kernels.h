#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Kernels of ranks that read and write each other's memory. They only enqueue, a graph can capture
// them, and cudaErrorInvalidValue says that arguments break the shape contract.
namespace lockstep::kernels::cuda {

inline constexpr int kPeersMax = 8;

// Of one rank, in its device's memory. Zeros at first.
struct PeerFlags {
  uint32_t round = 0;                // Meetings that this rank has begun.
  uint32_t arrived[kPeersMax] = {};  // Written by the others: their rounds.
};

// In the host's memory, seen by all devices.
struct PeerAlarm {
  // 0: none; r + 1: rank r did not come; kAbandoned: the host gave the group up.
  static constexpr uint32_t kAbandoned = 0xFFFFFFFF;
  uint32_t raised = 0;
};

// Who waits, and how long: then the alarm is raised, and the kernel goes on with what there is.
struct PeerWait {
  PeerAlarm* alarm = nullptr;
  int rank = 0;
  int ranks = 0;
  uint64_t patience_ns = 0;
};

// One CTA waits until every rank's stream has come to the same meeting. What a rank wrote before is
// seen by all after it.
struct PeerMeeting {
  PeerFlags* flags[kPeersMax] = {};  // By rank.
  PeerWait wait;
};
cudaError_t MeetPeers(const PeerMeeting& meeting, cudaStream_t stream);

// Where a rank's sums come to the others, without a meeting: each word of an inbox is kNotThere
// until its value comes, and again when that was read. No sum is kNotThere, which is a NaN that no
// instruction makes; one that were would be sent as another NaN, of which T makes the same.
//
// Two inboxes take turns. A rank writes into one again when it has read what all others sent to the
// next one, which they did after they had emptied the first.
struct PeerInbox {
  static constexpr uint32_t kNotThere = 0xFFFFFFFF;
  float* own = nullptr;           // [ranks][slot]
  float* theirs[kPeersMax] = {};  // By rank: this rank's [slot] in the inbox of that one.
  size_t slot = 0;                // Elements.
  PeerWait wait;
};

// y[i] = T over ranks of x[i], fp32, of `count` elements, a multiple of 4, as many as the slot at
// most. y may be x.
cudaError_t ExchangeSums(const PeerInbox& inbox, const float* x, size_t count, float* y,
                         cudaStream_t stream);

// What becomes of the sums of a row-parallel layer: y = RNbf16(T(sums)), or with `accumulate`
// y = RNbf16(y + that), and then, where there is a `norm_weight`, normed = RMSNorm(y). Outputs and
// strides are multiples of 8 elements. The bits of LinearCombine and RmsNorm.
struct SumUse {
  int rows = 0;
  int outputs = 0;
  uint16_t* y = nullptr;
  size_t y_stride = 0;
  bool accumulate = false;
  const float* norm_weight = nullptr;  // Only with accumulate.
  float norm_epsilon = 0;
  uint16_t* normed = nullptr;
  size_t normed_stride = 0;
};

// All of it in one kernel, for few rows: this rank's sums go to the others, theirs are waited for.
// The slot has ExchangedRowElements for each row.
struct ExchangeRowsCall {
  PeerInbox inbox;
  const float* parts = nullptr;  // Of this rank: [rows, outputs] each, in the order of segments.
  size_t part_stride = 0;
  int part_count = 1;  // With ranks: 8 at most.
  SumUse use;
};
inline constexpr int kExchangedOutputsMax = 8192;
constexpr size_t ExchangedRowElements(int outputs) {
  return (static_cast<size_t>(outputs) + 255) / 256 * 256;
}
cudaError_t ExchangeRows(const ExchangeRowsCall& call, cudaStream_t stream);

// Partial sums in the order of segments, of this rank or of a peer.
struct SharedSums {
  const float* segments[kPeersMax] = {};
  int count = 0;  // 1, 2, 4 or 8.
};

// to[i] = RNbf16(T(sums)[i]) for elements [begin, end), multiples of 4, on every rank: what one
// rank does for all of them, between two meetings.
struct ScatterSumsCall {
  SharedSums sums;
  uint16_t* to[kPeersMax] = {};
  int ranks = 0;
  size_t begin = 0;
  size_t end = 0;
};
cudaError_t ScatterSums(const ScatterSumsCall& call, cudaStream_t stream);

// What is left to do with T(sums) where it lies rounded, [rows, outputs].
cudaError_t UseRounded(const uint16_t* sums, const SumUse& use, cudaStream_t stream);

// y[i] = T(sums), fp32, of `count` elements, a multiple of 4.
cudaError_t ReduceShared(const SharedSums& sums, size_t count, float* y, cudaStream_t stream);

// The parts of a matrix side by side: y[row, first_r + c] = x_r[row, c]. Columns and strides are
// multiples of 4.
struct GatherSharedCall {
  const float* x[kPeersMax] = {};  // [rows, columns[r]]
  int first_column[kPeersMax] = {};
  int columns[kPeersMax] = {};
  int ranks = 0;
  int rows = 0;
  float* y = nullptr;
  size_t y_stride = 0;
};
cudaError_t GatherShared(const GatherSharedCall& call, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
