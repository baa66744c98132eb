#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/linear_product.cuh"
#include "kernels/cuda/device/primitive/async_copy.cuh"
#include "kernels/cuda/device/primitive/mma.cuh"

// Products of a linear layer by mma.sync. A CTA computes a tile of kRows rows of x and kOutputs
// outputs for one segment; its warps divide the tile, and copies of the next steps of 64 inputs are
// on their way. Weights are the left operand, so that few rows make a narrow product. Each element
// adds groups of 16 inputs in ascending order from zero, one chain in one accumulator.
// Placement-invariant.
namespace lockstep::kernels::cuda {

template <int kRowsOfTile, int kOutputsOfTile, int kWarpsOfRows, int kWarpsOfOutputs,
          int kStagesOfRing>
struct LinearMmaTiling {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kOutputs = kOutputsOfTile;
  static constexpr int kStages = kStagesOfRing;
  static constexpr int kRowWarps = kWarpsOfRows;
  static constexpr int kWarpRows = kRows / kWarpsOfRows;           // A multiple of 8.
  static constexpr int kWarpOutputs = kOutputs / kWarpsOfOutputs;  // A multiple of 16.
  static constexpr int kThreads = kWarpsOfRows * kWarpsOfOutputs * 32;
  static constexpr int kStepBytes = 128;  // Of 64 inputs of a row.
  static constexpr int kWeightBytes = kOutputs * kStepBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kStepBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // What the smallest GPUs give a CTA.
  static_assert(kSharedBytes <= 99 * 1024);
};

template <typename Tiling>
class LinearMma {
 public:
  __device__ LinearMma(const LinearProductParameters& p, uint8_t* shared)
      : p_(p), shared_(SharedAddress(shared)), thread_(static_cast<int>(threadIdx.x)) {
    // CTAs that run at once take all rows of a few outputs.
    const int tile = static_cast<int>(blockIdx.x);
    const int row_tiles = (p.rows + Tiling::kRows - 1) / Tiling::kRows;
    row_ = tile % row_tiles * Tiling::kRows;
    output_ = tile / row_tiles * Tiling::kOutputs;
    segment_ = static_cast<int>(blockIdx.y);
    lane_ = thread_ % 32;
    const int warp = thread_ / 32;
    warp_row_ = warp % Tiling::kRowWarps * Tiling::kWarpRows;
    warp_output_ = warp / Tiling::kRowWarps * Tiling::kWarpOutputs;
  }

  __device__ void Run() {
    const int steps = p_.length / 64;
#pragma unroll
    for (int step = 0; step < Tiling::kStages - 1; ++step) {
      if (step < steps) Copy(step, step);
      CommitCopies();
    }
    int stage = 0;
    for (int step = 0; step < steps; ++step) {
      WaitForCopies<Tiling::kStages - 2>();
      // The stage is there for all, and nobody reads the one that is filled now any more.
      __syncthreads();
      const int next = step + Tiling::kStages - 1;
      if (next < steps) Copy(next, stage == 0 ? Tiling::kStages - 1 : stage - 1);
      CommitCopies();
      Multiply(shared_ + stage * Tiling::kStageBytes);
      if (++stage == Tiling::kStages) stage = 0;
    }
    Store();
  }

 private:
  static constexpr int kOutputTiles = Tiling::kWarpOutputs / 16;
  static constexpr int kRowTiles = Tiling::kWarpRows / 8;

  // Step `step` of 64 inputs to a stage. Within a row of 128 bytes the 16-byte chunk c stands at
  // c ^ (row % 8), so that loads of matrices meet no bank twice.
  __device__ __forceinline__ void Copy(int step, int stage) const {
    const uint32_t to = shared_ + stage * Tiling::kStageBytes;
    const int input = segment_ * p_.length + step * 64;
    CopyRows<Tiling::kOutputs>(p_.weight + input, p_.inputs, output_, p_.outputs, to);
    CopyRows<Tiling::kRows>(p_.x + input, p_.x_stride, row_, p_.rows, to + Tiling::kWeightBytes);
  }

  template <int kCount>
  __device__ __forceinline__ void CopyRows(const uint16_t* matrix, size_t stride, int first,
                                           int end, uint32_t to) const {
#pragma unroll
    for (int i = 0; i < (kCount * 8 + Tiling::kThreads - 1) / Tiling::kThreads; ++i) {
      const int at = i * Tiling::kThreads + thread_;
      if (kCount * 8 % Tiling::kThreads != 0 && at >= kCount * 8) break;
      const int row = at / 8;
      const int chunk = at % 8;
      const bool exists = first + row < end;
      const uint16_t* from = matrix + static_cast<size_t>(exists ? first + row : 0) * stride;
      CopyAsync(to + row * Tiling::kStepBytes + (chunk ^ (row % 8)) * 16, from + chunk * 8, exists);
    }
  }

  __device__ __forceinline__ void Multiply(uint32_t stage) {
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      uint32_t weight[kOutputTiles][4];
#pragma unroll
      for (int o = 0; o < kOutputTiles; ++o) {
        const int row = warp_output_ + 16 * o + lane_ % 16;
        LoadMatrices(weight[o], Chunk(stage, row, 2 * group + lane_ / 16));
      }
      uint32_t x[kRowTiles][2];
      LoadX(stage + Tiling::kWeightBytes, group, x);
#pragma unroll
      for (int o = 0; o < kOutputTiles; ++o) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) MmaM16N8K16(sums_[o][r], weight[o], x[r][0], x[r][1]);
      }
    }
  }

  __device__ __forceinline__ void LoadX(uint32_t x_stage, int group,
                                        uint32_t (&x)[kRowTiles][2]) const {
    if constexpr (kRowTiles == 1) {
      LoadTwoMatrices(x[0], Chunk(x_stage, warp_row_ + lane_ % 8, 2 * group + lane_ / 8 % 2));
    } else {
#pragma unroll
      for (int r = 0; r < kRowTiles; r += 2) {
        const int row = warp_row_ + 8 * r + lane_ / 16 * 8 + lane_ % 8;
        uint32_t both[4];
        LoadMatrices(both, Chunk(x_stage, row, 2 * group + lane_ / 8 % 2));
        x[r][0] = both[0];
        x[r][1] = both[1];
        x[r + 1][0] = both[2];
        x[r + 1][1] = both[3];
      }
    }
  }

  static __device__ __forceinline__ uint32_t Chunk(uint32_t stage, int row, int chunk) {
    return stage + row * Tiling::kStepBytes + (chunk ^ (row % 8)) * 16;
  }

  // A lane holds outputs lane / 4 and that plus 8 of two rows.
  __device__ __forceinline__ void Store() const {
#pragma unroll
    for (int o = 0; o < kOutputTiles; ++o) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = output_ + warp_output_ + 16 * o + 8 * half;
        // Outputs are a multiple of 8.
        if (first >= p_.outputs) continue;
        const int output = first + lane_ / 4;
        const float bias =
            p_.bias == nullptr ? 0 : __uint_as_float(static_cast<uint32_t>(p_.bias[output]) << 16);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          float v[2] = {sums_[o][r][2 * half], sums_[o][r][2 * half + 1]};
          if (p_.bias != nullptr) {
            v[0] = __fadd_rn(v[0], bias);
            v[1] = __fadd_rn(v[1], bias);
          }
          const int row = row_ + warp_row_ + 8 * r;
          if (p_.product_f32) {
            StoreF32(row + lane_ % 4 * 2, output, v);
          } else {
            StoreBf16(row + lane_ / 4, first + lane_ % 4 * 2, v);
          }
        }
      }
    }
  }

  __device__ __forceinline__ size_t At(int row, int output) const {
    return (static_cast<size_t>(segment_) * p_.rows + row) * p_.product_stride + output;
  }

  __device__ __forceinline__ void StoreF32(int row, int output, const float (&v)[2]) const {
    float* product = static_cast<float*>(p_.product);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + i < p_.rows) product[At(row + i, output)] = v[i];
    }
  }

  // Transposed, a lane has two neighbouring outputs of one row.
  __device__ __forceinline__ void StoreBf16(int row, int output, const float (&v)[2]) const {
    const uint32_t pair = TransposeMatrix(PackBf16(v[0], v[1]));
    if (row >= p_.rows) return;
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p_.product) + At(row, output)) = pair;
  }

  const LinearProductParameters& p_;
  uint32_t shared_;
  int thread_;
  int lane_;
  int row_;     // First of the tile.
  int output_;  // Likewise.
  int segment_;
  int warp_row_;
  int warp_output_;
  float sums_[kOutputTiles][kRowTiles][4] = {};
};

template <typename Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    LinearMmaKernel(const __grid_constant__ LinearProductParameters p) {
  extern __shared__ __align__(128) uint8_t shared[];
  LinearMma<Tiling>(p, shared).Run();
}

}  // namespace lockstep::kernels::cuda
