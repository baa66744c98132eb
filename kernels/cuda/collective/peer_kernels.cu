#include "kernels/cuda/collective/peer_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/peer_memory.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Ctas(size_t items) {
  return static_cast<unsigned>(
      std::clamp<size_t>((items + kThreads - 1) / kThreads, 1, size_t{132} * 8));
}

// Calls launch(std::integral_constant<int, segments>).
template <typename Launch>
cudaError_t WithSegments(int segments, const Launch& launch) {
  switch (segments) {
    case 1:
      launch(std::integral_constant<int, 1>());
      break;
    case 2:
      launch(std::integral_constant<int, 2>());
      break;
    case 4:
      launch(std::integral_constant<int, 4>());
      break;
    case 8:
      launch(std::integral_constant<int, 8>());
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t MeetPeers(const PeerMeeting& meeting, cudaStream_t stream) {
  if (meeting.ranks < 1 || meeting.ranks > kPeersMax || meeting.rank < 0 ||
      meeting.rank >= meeting.ranks) {
    return cudaErrorInvalidValue;
  }
  MeetPeersKernel<<<1, 32, 0, stream>>>(meeting);
  return cudaGetLastError();
}

cudaError_t AddShared(const AddSharedCall& call, cudaStream_t stream) {
  if (call.rows < 0 || call.outputs % 4 != 0 || call.y_stride % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  if (call.rows == 0) return cudaSuccess;
  const unsigned ctas =
      Ctas(static_cast<size_t>(call.rows) * static_cast<size_t>(call.outputs) / 4);
  return WithSegments(call.sums.count, [&](auto segments) {
    AddSharedKernel<segments()><<<ctas, kThreads, 0, stream>>>(call);
  });
}

cudaError_t ReduceShared(const SharedSums& sums, size_t count, float* y, cudaStream_t stream) {
  if (count % 4 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  return WithSegments(sums.count, [&](auto segments) {
    ReduceSharedKernel<segments()><<<Ctas(count / 4), kThreads, 0, stream>>>(sums, count / 4, y);
  });
}

cudaError_t GatherShared(const GatherSharedCall& call, cudaStream_t stream) {
  if (call.rows < 0 || call.ranks < 1 || call.ranks > kPeersMax || call.y_stride % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  for (int rank = 0; rank < call.ranks; ++rank) {
    if (call.columns[rank] % 4 != 0 || call.first_column[rank] % 4 != 0) {
      return cudaErrorInvalidValue;
    }
  }
  if (call.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(call.rows), static_cast<unsigned>(call.ranks));
  GatherSharedKernel<<<grid, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace lockstep::kernels::cuda
