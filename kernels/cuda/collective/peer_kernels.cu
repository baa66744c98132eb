#include "kernels/cuda/collective/peer_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/device/peer_exchange.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Ctas(size_t items) {
  return static_cast<unsigned>(
      std::clamp<size_t>((items + kThreads - 1) / kThreads, 1, size_t{132} * 8));
}

// CTAs of so many threads that the current device holds at once, whatever their kernel: one of 64
// registers a thread at least.
size_t ResidentCtas(unsigned threads) {
  int device = 0;
  int multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return static_cast<size_t>(multiprocessors) * (1024 / threads);
}

// Calls launch(std::integral_constant<int, count>).
template <typename Launch>
cudaError_t WithCount(int count, const Launch& launch) {
  switch (count) {
    case 1:
      return launch(std::integral_constant<int, 1>());
    case 2:
      return launch(std::integral_constant<int, 2>());
    case 4:
      return launch(std::integral_constant<int, 4>());
    case 8:
      return launch(std::integral_constant<int, 8>());
    default:
      return cudaErrorInvalidValue;
  }
}

bool IsSupported(const PeerWait& wait) {
  return wait.ranks >= 1 && wait.ranks <= kPeersMax && wait.rank >= 0 && wait.rank < wait.ranks;
}

bool IsSupported(const SumUse& use) {
  return use.rows >= 0 && use.outputs > 0 && use.outputs % kRowVector == 0 &&
         use.y_stride % kRowVector == 0 && use.normed_stride % kRowVector == 0 &&
         (use.norm_weight == nullptr || use.accumulate);
}

}  // namespace

cudaError_t MeetPeers(const PeerMeeting& meeting, cudaStream_t stream) {
  if (!IsSupported(meeting.wait)) return cudaErrorInvalidValue;
  MeetPeersKernel<<<1, 32, 0, stream>>>(meeting);
  return cudaGetLastError();
}

cudaError_t ExchangeSums(const PeerInbox& inbox, const float* x, size_t count, float* y,
                         cudaStream_t stream) {
  if (!IsSupported(inbox.wait) || count % 4 != 0 || count > inbox.slot) {
    return cudaErrorInvalidValue;
  }
  if (count == 0) return cudaSuccess;
  const unsigned ctas = static_cast<unsigned>(
      std::min<size_t>((count / 4 + kThreads - 1) / kThreads, ResidentCtas(kThreads)));
  return WithCount(inbox.wait.ranks, [&](auto ranks) {
    if constexpr (ranks() > 1) {
      return LaunchKernel(ExchangeSumsKernel<ranks()>, dim3(ctas), dim3(kThreads), 0, stream, inbox,
                          x, count / 4, y);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

cudaError_t ExchangeRows(const ExchangeRowsCall& call, cudaStream_t stream) {
  const SumUse& use = call.use;
  const int ranks = call.inbox.wait.ranks;
  if (!IsSupported(call.inbox.wait) || !IsSupported(use) || use.outputs > kExchangedOutputsMax ||
      static_cast<size_t>(use.rows) * ExchangedRowElements(use.outputs) > call.inbox.slot ||
      call.part_stride % kRowVector != 0) {
    return cudaErrorInvalidValue;
  }
  if (use.rows == 0) return cudaSuccess;
  const unsigned threads = std::max(32u, std::bit_ceil(static_cast<unsigned>(use.outputs) / 8));
  const unsigned ctas =
      static_cast<unsigned>(std::min<size_t>(static_cast<size_t>(use.rows), ResidentCtas(threads)));
  return WithCount(ranks, [&](auto rank_count) {
    return WithCount(call.part_count, [&](auto parts) {
      if constexpr (rank_count() > 1 && rank_count() * parts() <= kPeersMax) {
        constexpr int kRanks = rank_count();
        constexpr int kParts = parts();
        const auto kernel = use.norm_weight == nullptr ? ExchangeRowsKernel<kRanks, kParts, false>
                                                       : ExchangeRowsKernel<kRanks, kParts, true>;
        return LaunchKernel(kernel, dim3(ctas), dim3(threads), 0, stream, call);
      } else {
        return cudaErrorInvalidValue;
      }
    });
  });
}

cudaError_t ScatterSums(const ScatterSumsCall& call, cudaStream_t stream) {
  if (call.ranks < 1 || call.ranks > kPeersMax || call.begin % 4 != 0 || call.end % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  if (call.begin >= call.end) return cudaSuccess;
  const unsigned ctas = Ctas((call.end - call.begin) / 4);
  return WithCount(call.sums.count, [&](auto segments) {
    ScatterSumsKernel<segments()><<<ctas, kThreads, 0, stream>>>(call);
    return cudaGetLastError();
  });
}

cudaError_t UseRounded(const uint16_t* sums, const SumUse& use, cudaStream_t stream) {
  if (!IsSupported(use)) return cudaErrorInvalidValue;
  if (use.rows == 0) return cudaSuccess;
  if (use.norm_weight != nullptr) {
    return ResidualRmsNorm({.norm = {.weight = use.norm_weight,
                                     .epsilon = use.norm_epsilon,
                                     .width = use.outputs,
                                     .rows = use.rows,
                                     .y = use.normed,
                                     .y_stride = use.normed_stride},
                            .residual = use.y,
                            .residual_stride = use.y_stride,
                            .update = sums},
                           stream);
  }
  const size_t eights = static_cast<size_t>(use.rows) * static_cast<size_t>(use.outputs) / 8;
  return LaunchKernel(AddRoundedKernel, dim3(Ctas(eights)), dim3(kThreads), 0, stream, sums, use);
}

cudaError_t ReduceShared(const SharedSums& sums, size_t count, float* y, cudaStream_t stream) {
  if (count % 4 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  return WithCount(sums.count, [&](auto segments) {
    ReduceSharedKernel<segments()><<<Ctas(count / 4), kThreads, 0, stream>>>(sums, count / 4, y);
    return cudaGetLastError();
  });
}

cudaError_t GatherShared(const GatherSharedCall& call, cudaStream_t stream) {
  if (call.rows < 0 || call.ranks < 1 || call.ranks > kPeersMax || call.y_stride % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  int widest = 0;
  for (int rank = 0; rank < call.ranks; ++rank) {
    if (call.columns[rank] % 4 != 0 || call.first_column[rank] % 4 != 0) {
      return cudaErrorInvalidValue;
    }
    widest = std::max(widest, call.columns[rank]);
  }
  if (call.rows == 0 || widest == 0) return cudaSuccess;
  constexpr int kColumns = kThreads * kGatheredFours * 4;
  const dim3 grid(static_cast<unsigned>(call.rows), static_cast<unsigned>(call.ranks),
                  static_cast<unsigned>((widest + kColumns - 1) / kColumns));
  GatherSharedKernel<<<grid, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace lockstep::kernels::cuda
