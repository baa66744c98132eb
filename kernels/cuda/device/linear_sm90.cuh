#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/linear_combine.cuh"
#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/cluster_memory_sm90.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/device/primitive/tensor_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/wgmma_shared_sm90.cuh"
#include "kernels/cuda/device/primitive/wgmma_sm90.cuh"

// A linear layer in one kernel: products, T over two segments, bias, rounding and residual. A tile
// is 64 outputs for each of kWarpgroups, and kRows rows of x. Weights are the left operand, so that
// few rows make a narrow product. Each output element adds groups of 16 inputs in ascending order
// from zero, per segment: one chain in one accumulator. Placement-invariant.
namespace lockstep::kernels::cuda {

// How a layer is cut. No field reaches a bit.
template <int kRowsOfTile, int kWarpgroupsOfTile, int kSegmentsOfLayer, bool kSplitSegments,
          int kSharers>
struct LinearTiling {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kWarpgroups = kWarpgroupsOfTile;
  static constexpr int kSegments = kSegmentsOfLayer;
  // Segments go to different CTAs of a cluster and meet in shared memory; else a CTA sums one
  // after the other.
  static constexpr bool kSplit = kSplitSegments;
  // CTAs of a cluster with neighbouring outputs that load rows of x for each other.
  static constexpr int kMulticast = kSharers;

  static constexpr int kOutputs = 64 * kWarpgroups;
  static constexpr int kCluster = (kSplit ? kSegments : 1) * kMulticast;
  static constexpr int kSumsHere = kSplit ? 1 : kSegments;
  static constexpr int kThreads = kWarpgroups * 128 + 128;
  static constexpr int kWeightBytes = kOutputs * 128;
  static constexpr int kXBytes = kRows * 128;
  static constexpr int kStageBytes = kWeightBytes + kXBytes;
  static constexpr int kExchangeBytes = kSplit ? kOutputs * kRows * 4 : 0;
  static constexpr int kSharedMax = 225 * 1024;
  static constexpr int kStagesThatFit = (kSharedMax - kExchangeBytes - 2048) / kStageBytes;
  static constexpr int kStages = kStagesThatFit < 16 ? kStagesThatFit : 16;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kExchangeBytes + 512;
};

struct LinearSm90Parameters {
  const uint16_t* bias;
  uint16_t* y;   // Or else …
  float* y_f32;  // … the sums as they are, without bias and residual.
  size_t y_stride;
  int rows;
  int inputs;
  int output_tiles;  // Of kOutputs.
  int row_tiles;
  bool accumulate;
};

template <typename Tiling>
class LinearSm90 {
 public:
  __device__ LinearSm90(const CUtensorMap* weight_map, const CUtensorMap* x_map,
                        const LinearSm90Parameters& p, uint8_t* shared)
      : weight_map_(weight_map), x_map_(x_map), p_(p), stages_(shared) {
    exchange_ = reinterpret_cast<float*>(shared + Tiling::kStages * Tiling::kStageBytes);
    full_ = reinterpret_cast<Barrier*>(shared + Tiling::kStages * Tiling::kStageBytes +
                                       Tiling::kExchangeBytes);
    empty_ = full_ + Tiling::kStages;
    rank_ = Tiling::kCluster > 1 ? RankInCluster() : 0;
    segment_ = rank_ / Tiling::kMulticast;
    sharer_ = rank_ % Tiling::kMulticast;
  }

  // The weights of the first stages are asked for at once: nothing that runs before writes them.
  __device__ void Run() {
    const int role = static_cast<int>(threadIdx.x) / 128;
    const bool loads = threadIdx.x == Tiling::kWarpgroups * 128;
    if (loads) {
      PrefetchMap(weight_map_);
      PrefetchMap(x_map_);
      for (int stage = 0; stage < Tiling::kStages; ++stage) {
        InitBarrier(&full_[stage], 1);
        InitBarrier(&empty_[stage], 4 * Tiling::kWarpgroups * Tiling::kMulticast);
      }
      FenceBarrierInit();
      const Place first = PlaceOf(cluster());
      for (int step = 0; step < FirstSteps(); ++step) LoadWeight(first, step, step);
    }
    __syncwarp();
    AllowNextKernel();
    SyncCtas();
    if (role == Tiling::kWarpgroups) {
      if constexpr (Tiling::kWarpgroups == 2) GiveUpRegisters<40>();
      if (loads) Load();
      // Orders the last use of every CTA's shared memory before the first exit.
      if constexpr (Tiling::kCluster > 1) {
        __syncwarp();
        SyncCluster();
      }
    } else {
      if constexpr (Tiling::kWarpgroups == 2) TakeRegisters<232>();
      WaitForKernels();
      Compute(role);
    }
  }

 private:
  struct Place {
    int output;
    int row;
  };

  static __device__ void SyncCtas() {
    if constexpr (Tiling::kCluster > 1) {
      SyncCluster();
    } else {
      __syncthreads();
    }
  }

  // Clusters that run at once take tiles of a few outputs and many rows, whose operands fit the
  // second-level cache together.
  __device__ Place PlaceOf(int tile) const {
    constexpr int kBand = 8;
    const int wide = p_.output_tiles / Tiling::kMulticast;  // Tiles of a cluster.
    const int band = tile / (kBand * p_.row_tiles);
    const int within = tile % (kBand * p_.row_tiles);
    const int band_width = min(kBand, wide - band * kBand);
    const int output = (band * kBand + within % band_width) * Tiling::kMulticast + sharer_;
    return {output * Tiling::kOutputs, within / band_width * Tiling::kRows};
  }

  __device__ int tiles() const { return p_.output_tiles / Tiling::kMulticast * p_.row_tiles; }
  __device__ int cluster() const { return static_cast<int>(blockIdx.x) / Tiling::kCluster; }
  __device__ int clusters() const { return static_cast<int>(gridDim.x) / Tiling::kCluster; }

  // Steps of 64 inputs that this CTA takes for a tile.
  __device__ int steps() const { return p_.inputs / 64 / (Tiling::kSplit ? Tiling::kSegments : 1); }
  __device__ int FirstSteps() const {
    return cluster() < tiles() ? min(Tiling::kStages, steps()) : 0;
  }
  __device__ int InputOf(int step) const {
    return (step + (Tiling::kSplit ? segment_ * steps() : 0)) * 64;
  }

  __device__ void LoadWeight(const Place& place, int step, int stage) {
    ArriveExpecting(&full_[stage], Tiling::kStageBytes);
    CopyTile(stages_ + stage * Tiling::kStageBytes, weight_map_, InputOf(step), place.output,
             &full_[stage]);
  }

  __device__ void LoadX(const Place& place, int step, int stage) {
    constexpr int kXRows = Tiling::kRows / Tiling::kMulticast;
    uint8_t* x =
        stages_ + stage * Tiling::kStageBytes + Tiling::kWeightBytes + sharer_ * kXRows * 128;
    const int row = place.row + sharer_ * kXRows;
    if constexpr (Tiling::kMulticast > 1) {
      const uint16_t sharers =
          static_cast<uint16_t>(((1 << Tiling::kMulticast) - 1) << (segment_ * Tiling::kMulticast));
      CopyTileToCtas(x, x_map_, InputOf(step), row, &full_[stage], sharers);
    } else {
      CopyTile(x, x_map_, InputOf(step), row, &full_[stage]);
    }
  }

  __device__ void Load() {
    WaitForKernels();
    RingPosition<Tiling::kStages> ring;
    Place place = PlaceOf(cluster());
    int step = 0;
    for (; step < FirstSteps(); ++step) {
      LoadX(place, step, ring.stage);
      ring.Advance();
    }
    for (int tile = cluster(); tile < tiles(); tile += clusters()) {
      // Divisions take longer than a step of copies, so once a tile.
      place = PlaceOf(tile);
      for (; step < steps(); ++step) {
        Wait(&empty_[ring.stage], ring.parity ^ 1);
        LoadWeight(place, step, ring.stage);
        LoadX(place, step, ring.stage);
        ring.Advance();
      }
      step = 0;
    }
  }

  // One arrival of each warp in every CTA that loads into this one.
  __device__ void Release(int stage) {
    if constexpr (Tiling::kMulticast > 1) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      if (lane < Tiling::kMulticast) {
        ArriveInCta(&empty_[stage], static_cast<uint32_t>(segment_ * Tiling::kMulticast + lane));
      }
    } else {
      if (threadIdx.x % 32 == 0) Arrive(&empty_[stage]);
    }
  }

  using Sums = float[Tiling::kRows / 8][4];

  // The chain of one segment, in a single accumulator.
  __device__ void Sum(int warpgroup, RingPosition<Tiling::kStages>& ring, Sums& sums) {
    const int steps = p_.inputs / Tiling::kSegments / 64;
    int previous = -1;
    for (int step = 0; step < steps; ++step) {
      const uint32_t stage = SharedAddress(stages_ + ring.stage * Tiling::kStageBytes);
      const uint64_t weight = SwizzledDescriptor(stage + warpgroup * 64 * 128, 0);
      const uint64_t x = SwizzledDescriptor(stage + Tiling::kWeightBytes, 0);
      Wait(&full_[ring.stage], ring.parity);
      WgmmaFence();
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        WgmmaShared(sums, weight + 2 * group, x + 2 * group, step + group > 0);
      }
      WgmmaCommit();
      // The product before this one is done, so its stage may be filled again.
      WgmmaWait<1>();
      if (previous >= 0) Release(previous);
      previous = ring.stage;
      ring.Advance();
    }
    WgmmaWait<0>();
    Release(previous);
  }

  __device__ void Compute(int warpgroup) {
    RingPosition<Tiling::kStages> ring;
    for (int tile = cluster(); tile < tiles(); tile += clusters()) {
      float sums[Tiling::kSumsHere][Tiling::kRows / 8][4];
#pragma unroll
      for (int segment = 0; segment < Tiling::kSumsHere; ++segment) {
        Sum(warpgroup, ring, sums[segment]);
        WgmmaFenceSums(sums[segment]);
      }
      const Place place = PlaceOf(tile);
      if constexpr (Tiling::kSplit) {
        Exchange(warpgroup, sums[0]);
        if (segment_ == 0) Write(warpgroup, place, sums[0]);
      } else {
        if constexpr (Tiling::kSegments == 2) {
#pragma unroll
          for (int t = 0; t < Tiling::kRows / 8; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[0][t][i] = __fadd_rn(sums[0][t][i], sums[1][t][i]);
          }
        }
        Write(warpgroup, place, sums[0]);
      }
    }
    if constexpr (!Tiling::kSplit && Tiling::kCluster > 1) SyncCluster();
  }

  // The second segment's sums go to the CTA of the first, which adds them: T of two.
  __device__ void Exchange(int warpgroup, Sums& sums) {
    float* mine = exchange_ + warpgroup * 64 * Tiling::kRows + threadIdx.x % 128;
    if (segment_ == 1) {
      const uint32_t to = AddressInCta(mine, static_cast<uint32_t>(sharer_));
#pragma unroll
      for (int t = 0; t < Tiling::kRows / 8; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) StoreInCta(to + (t * 4 + i) * 512, sums[t][i]);
      }
    }
    SyncCluster();
    if (segment_ == 0) {
#pragma unroll
      for (int t = 0; t < Tiling::kRows / 8; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[t][i] = __fadd_rn(sums[t][i], mine[(t * 4 + i) * 128]);
        }
      }
    }
  }

  // A lane holds two rows of two outputs; transposed and exchanged with its neighbour, it writes
  // four neighbouring outputs of one row.
  __device__ void Write(int warpgroup, const Place& place, const Sums& sums) {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int output = place.output + warpgroup * 64 + warp * 16;
    if (p_.y_f32 != nullptr) return WriteSums(place.row, output, sums);
    const bool odd = lane % 2 != 0;
    const int column = output + (odd ? 8 + (lane % 4 - 1) * 2 : lane % 4 * 2);
    float bias[2] = {0, 0};
    if (p_.bias != nullptr) {
      bias[0] = __uint_as_float(static_cast<uint32_t>(p_.bias[output + lane / 4]) << 16);
      bias[1] = __uint_as_float(static_cast<uint32_t>(p_.bias[output + lane / 4 + 8]) << 16);
    }
#pragma unroll
    for (int t = 0; t < Tiling::kRows / 8; ++t) {
      float v[4] = {sums[t][0], sums[t][1], sums[t][2], sums[t][3]};
      if (p_.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __fadd_rn(v[i], bias[i / 2]);
      }
      const uint32_t low = TransposeMatrix(PackBf16(v[0], v[1]));
      const uint32_t high = TransposeMatrix(PackBf16(v[2], v[3]));
      const uint32_t received = __shfl_xor_sync(0xFFFFFFFF, odd ? low : high, 1);
      uint2 four = odd ? make_uint2(received, high) : make_uint2(low, received);
      const int row = place.row + t * 8 + lane / 4;
      if (row < p_.rows) {
        uint2* to =
            reinterpret_cast<uint2*>(p_.y + static_cast<size_t>(row) * p_.y_stride + column);
        if (p_.accumulate) {
          const uint2 residual = *to;
          four = make_uint2(AddPair(residual.x, four.x), AddPair(residual.y, four.y));
        }
        *to = four;
      }
      __syncwarp();
    }
  }

  // Eight lanes write eight neighbouring outputs of one row.
  __device__ void WriteSums(int first_row, int output, const Sums& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int t = 0; t < Tiling::kRows / 8; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + t * 8 + lane % 4 * 2 + i % 2;
        if (row >= p_.rows) continue;
        p_.y_f32[static_cast<size_t>(row) * p_.y_stride + output + lane / 4 + i / 2 * 8] =
            sums[t][i];
      }
    }
  }

  static __device__ uint32_t AddPair(uint32_t residual, uint32_t value) {
    const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
    const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000); };
    return PackBf16(__fadd_rn(low(residual), low(value)), __fadd_rn(high(residual), high(value)));
  }

  const CUtensorMap* weight_map_;
  const CUtensorMap* x_map_;
  const LinearSm90Parameters& p_;
  uint8_t* stages_;
  float* exchange_;
  Barrier* full_;
  Barrier* empty_;
  int rank_;
  int segment_;
  int sharer_;
};

template <typename Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, 1)
    LinearSm90Kernel(const __grid_constant__ CUtensorMap weight_map,
                     const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ LinearSm90Parameters p) {
  extern __shared__ uint8_t shared[];
  // The swizzle counts from multiples of 1024 bytes, at the same place in every CTA.
  uint8_t* aligned = shared + (1024 - SharedAddress(shared) % 1024) % 1024;
  LinearSm90<Tiling>(&weight_map, &x_map, p, aligned).Run();
}

}  // namespace lockstep::kernels::cuda
