#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Kernels of ranks that read each other's memory. They only enqueue, a graph can capture them, and
// cudaErrorInvalidValue says that arguments break the shape contract.
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

// One CTA waits until every rank's stream has come to the same meeting. What a rank wrote before is
// seen by all after it. Ends after `patience_ns` with the alarm raised.
struct PeerMeeting {
  PeerFlags* flags[kPeersMax] = {};  // By rank.
  PeerAlarm* alarm = nullptr;
  int rank = 0;
  int ranks = 0;
  uint64_t patience_ns = 0;
};
cudaError_t MeetPeers(const PeerMeeting& meeting, cudaStream_t stream);

// Partial sums of a row-parallel layer, in the order of segments: fp32 [rows, outputs] each, of
// this rank or of a peer.
struct SharedSums {
  const float* segments[kPeersMax] = {};
  int count = 0;  // 1, 2, 4 or 8.
};

// y = RNbf16(T(sums)), or with `accumulate` y = RNbf16(y + that). outputs and y_stride are
// multiples of 4 elements. The bits of LinearCombine.
struct AddSharedCall {
  SharedSums sums;
  int rows = 0;
  int outputs = 0;
  uint16_t* y = nullptr;
  size_t y_stride = 0;
  bool accumulate = false;
};
cudaError_t AddShared(const AddSharedCall& call, cudaStream_t stream);

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
