#pragma once

#include <cstdint>

#include "kernels/cuda/device/peer_memory.cuh"
#include "kernels/cuda/device/rms_norm.cuh"

// Sums of all ranks in one kernel: a thread puts its own into the others' inboxes and waits until
// theirs are in its own. There is no flag: every word says itself whether it is there, so nothing
// is fenced, and a word that came is used at once. T over ranks in registers. Placement-invariant.
//
// A thread sends all that it has before it waits, and every CTA is resident: nobody waits for what
// is sent by a thread that cannot run.
namespace lockstep::kernels::cuda {

__device__ __forceinline__ float Sendable(float x) {
  return __float_as_uint(x) == PeerInbox::kNotThere ? __uint_as_float(0x7FFFFFFF) : x;
}

__device__ __forceinline__ bool IsThere(float x) {
  return __float_as_uint(x) != PeerInbox::kNotThere;
}

// Where a row's eights lie in a slot: the first four of each of a warp's lanes, then the second, so
// that what a warp stores or loads at once is one piece.
constexpr int kFoursApart = 32 * 4;
__device__ __forceinline__ size_t PlaceInSlot(int row, size_t row_slot) {
  return static_cast<size_t>(row) * row_slot + threadIdx.x / 32 * (2 * kFoursApart) +
         threadIdx.x % 32 * 4;
}

// To every other rank.
template <int kRanks>
__device__ __forceinline__ void Send(const PeerInbox& inbox, size_t at, const float (&x)[4]) {
  const float4 v = {Sendable(x[0]), Sendable(x[1]), Sendable(x[2]), Sendable(x[3])};
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != inbox.wait.rank) StoreSystem(inbox.theirs[rank] + at, v);
  }
}

// The words of kRanks neighbouring slots, but for this rank's `own`, when all of the warp are
// there. Whole warps call it; lanes with `idle` wait for nothing.
template <int kRanks, int kFours>
__device__ __forceinline__ void Await(const PeerInbox& inbox, const float* slots, int own,
                                      bool idle, float4 (&words)[kRanks][kFours]) {
  constexpr unsigned kTurnsPerLook = 64;
  PeerPatience patience(inbox.wait);
  for (unsigned turn = 1;; ++turn) {
    int missing = -1;
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (idle || rank == own) continue;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        float4& four = words[rank][i];
        four = LoadSystem(slots + static_cast<size_t>(rank) * inbox.slot + i * kFoursApart);
        const bool there = IsThere(four.x) && IsThere(four.y) && IsThere(four.z) && IsThere(four.w);
        if (!there) missing = inbox.wait.rank - own + rank;
      }
    }
    if (__all_sync(0xFFFFFFFF, missing < 0)) return;
    if (turn % kTurnsPerLook != 0) continue;
    const int named = __reduce_max_sync(0xFFFFFFFF, missing);
    const bool over = threadIdx.x % 32 == 0 && patience.IsOver(named);
    if (__any_sync(0xFFFFFFFF, over)) return;
  }
}

// sums = T over kRanks ranks from `first` on, of which `sums` holds this rank's part where it is
// one of them, of kFours fours from `at` on, kFoursApart. Empties their slots. Whole warps call it.
template <int kRanks, int kFours>
__device__ __forceinline__ void Receive(const PeerInbox& inbox, int first, size_t at, bool idle,
                                        float (&sums)[4 * kFours]) {
  if constexpr (kRanks > 4) {  // More would not fit registers. Halves are subtrees of T.
    float right[4 * kFours];
#pragma unroll
    for (int i = 0; i < 4 * kFours; ++i) right[i] = sums[i];
    Receive<kRanks / 2, kFours>(inbox, first, at, idle, sums);
    Receive<kRanks / 2, kFours>(inbox, first + kRanks / 2, at, idle, right);
#pragma unroll
    for (int i = 0; i < 4 * kFours; ++i) sums[i] = sums[i] + right[i];
  } else {
    const int own = inbox.wait.rank - first;
    float* const slots = inbox.own + static_cast<size_t>(first) * inbox.slot + at;
    float4 words[kRanks][kFours];
    Await(inbox, slots, own, idle, words);
    if (idle) return;
    const float empty = __uint_as_float(PeerInbox::kNotThere);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float v[kRanks];
#pragma unroll
        for (int rank = 0; rank < kRanks; ++rank) {
          v[rank] = rank == own ? sums[4 * i + j] : (&words[rank][i].x)[j];
        }
        sums[4 * i + j] = TreeOfThread(v);
      }
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == own) continue;
        *reinterpret_cast<float4*>(slots + static_cast<size_t>(rank) * inbox.slot +
                                   i * kFoursApart) = make_float4(empty, empty, empty, empty);
      }
    }
  }
}

// With more than 2 ranks half at a time: both would not fit registers.
template <int kRanks>
__device__ __forceinline__ void ReceiveEight(const PeerInbox& inbox, size_t at, bool idle,
                                             float (&sums)[8]) {
  if constexpr (kRanks <= 2) {
    Receive<kRanks, 2>(inbox, 0, at, idle, sums);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) part[i] = sums[4 * half + i];
      Receive<kRanks, 1>(inbox, 0, at + half * kFoursApart, idle, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[4 * half + i] = part[i];
    }
  }
}

// T over this rank's own segments of 8 neighbouring sums.
template <int kParts>
__device__ __forceinline__ void OwnEight(const ExchangeRowsCall& call, int row, int column,
                                         float (&sums)[8]) {
  const float* const from =
      call.parts + static_cast<size_t>(row) * static_cast<size_t>(call.use.outputs) + column;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    TreeOfSegments<kParts>([&](size_t part) { return from + part * call.part_stride + i; },
                           sums + i);
  }
}

// One CTA a row and turn, 8 neighbouring outputs a thread.
template <int kRanks, int kParts, bool kNorm>
__global__ void __launch_bounds__(kExchangedOutputsMax / 8)
    ExchangeRowsKernel(const __grid_constant__ ExchangeRowsCall call) {
  // Whether the residual is loaded before sums are waited for: beside 8 ranks' it would spill.
  constexpr bool kEarly = kRanks <= 4;
  __shared__ float warp_sums[2][32];  // In turns: a row's are read while the next one's come.
  const SumUse& use = call.use;
  const int column = static_cast<int>(threadIdx.x) * 8;
  const bool idle = column >= use.outputs;
  const size_t row_slot = ExchangedRowElements(use.outputs);
  float weight[8] = {};
  if (kNorm && !idle) Load8(use.norm_weight + column, weight);
  const float inverse_width = 1.0f / static_cast<float>(use.outputs);
  WaitForKernels();
  for (int row = static_cast<int>(blockIdx.x); row < use.rows && !idle;
       row += static_cast<int>(gridDim.x)) {
    float sums[8];
    OwnEight<kParts>(call, row, column, sums);
    const size_t at = PlaceInSlot(row, row_slot);
    Send<kRanks>(call.inbox, at, {sums[0], sums[1], sums[2], sums[3]});
    Send<kRanks>(call.inbox, at + kFoursApart, {sums[4], sums[5], sums[6], sums[7]});
  }
  AllowNextKernel();
  int turn = 0;
  for (int row = static_cast<int>(blockIdx.x); row < use.rows; row += static_cast<int>(gridDim.x)) {
    uint4* const y = reinterpret_cast<uint4*>(use.y + row * use.y_stride + column);
    float sums[8] = {};
    float x[8] = {};
    if (!idle) {
      OwnEight<kParts>(call, row, column, sums);
      if (kEarly && use.accumulate) Widen8(*y, x);
    }
    ReceiveEight<kRanks>(call.inbox, PlaceInSlot(row, row_slot), idle, sums);
    if (!kEarly && !idle && use.accumulate) Widen8(*y, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float update = RoundedToBf16(sums[i]);
      x[i] = use.accumulate ? RoundedToBf16(x[i] + update) : update;
    }
    if (!idle) *y = Pack8(x);
    if constexpr (kNorm) {
      NormaliseRow(x, weight, inverse_width, use.norm_epsilon, warp_sums[turn]);
      turn = 1 - turn;
      if (!idle) {
        *reinterpret_cast<uint4*>(use.normed + row * use.normed_stride + column) = Pack8(x);
      }
    }
  }
}

template <int kRanks>
__global__ void __launch_bounds__(256) ExchangeSumsKernel(const __grid_constant__ PeerInbox inbox,
                                                          const float* x, size_t fours, float* y) {
  WaitForKernels();
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (size_t i = first; i < fours; i += step) {
    const float4 own = reinterpret_cast<const float4*>(x)[i];
    Send<kRanks>(inbox, 4 * i, {own.x, own.y, own.z, own.w});
  }
  AllowNextKernel();
  for (size_t i = first; i - threadIdx.x % 32 < fours; i += step) {
    const bool idle = i >= fours;
    float sums[4] = {};
    if (!idle) {
      const float4 own = reinterpret_cast<const float4*>(x)[i];
      sums[0] = own.x;
      sums[1] = own.y;
      sums[2] = own.z;
      sums[3] = own.w;
    }
    Receive<kRanks, 1>(inbox, 0, 4 * i, idle, sums);
    if (!idle) {
      reinterpret_cast<float4*>(y)[i] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
}

}  // namespace lockstep::kernels::cuda
