#pragma once

#include "kernels/cuda/device/attention_order.cuh"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/primitive/mma.cuh"

// Attention written down as the contract says it: one warp a row and query head, plain loads, the
// first of a fragment's 16 rows alone in use, loops in the order of the sums. Keys that the row
// does not see are not read.
namespace lockstep::kernels::cuda {

template <int kHeadDim>
class ReferenceRow {
 public:
  __device__ ReferenceRow(const AttentionParameters& p, int row, int head)
      : p_(p), row_(row), head_(head), lane_(static_cast<int>(threadIdx.x)) {
    position_ = p.positions[row];
  }

  __device__ void Run(int kv_block) {
    for (int split = 0; split <= position_; split += p_.split_kv_size) {
      max_ = kMinusInfinity;
      for (int i = 0; i < 4; ++i) row_sum_[i] = 0;
      for (int n = 0; n < kHeadDim / 8; ++n) {
        for (int i = 0; i < 4; ++i) sums_[n][i] = 0;
      }
      const int end = min(split + p_.split_kv_size, position_ + 1);
      for (int block = split; block < end; block += kv_block) Block(block, kv_block);
      Merge(split == 0);
    }
    if (lane_ >= 4) return;
    const size_t to = (static_cast<size_t>(row_) * p_.q_heads + head_) * kHeadDim;
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<uint32_t*>(p_.y + to + 8 * n + 2 * lane_) = PackBf16(
          Normalised(merged_[n][0], merged_row_sum_), Normalised(merged_[n][1], merged_row_sum_));
    }
  }

 private:
  __device__ uint16_t Element(KvSide side, int token, int dim) const {
    if (token > position_) return 0;
    const int page = p_.block_table[static_cast<size_t>(p_.row_sequence[row_]) * p_.blocks_max +
                                    token / kPageTokens];
    return p_.pool.data[KvTileOffset(p_.pool, page, p_.layer, head_ / p_.group, side) +
                        KvElementOffset(token % kPageTokens, dim)];
  }

  static __device__ uint32_t Pair(uint16_t low, uint16_t high) {
    return static_cast<uint32_t>(high) << 16 | low;
  }

  // Fragment of a left operand whose first row is `row` and whose others are zero.
  __device__ void FirstRow(const uint16_t* row, int k, uint32_t (&a)[4]) const {
    const uint16_t* at = row + 16 * k + lane_ % 4 * 2;
    a[0] = lane_ < 4 ? Pair(at[0], at[1]) : 0;
    a[1] = 0;
    a[2] = lane_ < 4 ? Pair(at[8], at[9]) : 0;
    a[3] = 0;
  }

  __device__ void Block(int begin, int kv_block) {
    __shared__ float scores[128];
    __shared__ uint16_t probabilities[128];
    const uint16_t* query =
        p_.qkv + static_cast<size_t>(row_) * (p_.q_heads + 2 * p_.pool.kv_heads) * kHeadDim +
        head_ * kHeadDim;
    for (int n = 0; n < kv_block / 8; ++n) {
      float s[4] = {0, 0, 0, 0};
      for (int k = 0; k < kHeadDim / 16; ++k) {
        uint32_t a[4];
        FirstRow(query, k, a);
        const int token = begin + 8 * n + lane_ / 4;
        const int dim = 16 * k + lane_ % 4 * 2;
        const uint32_t b0 =
            Pair(Element(KvSide::kKeys, token, dim), Element(KvSide::kKeys, token, dim + 1));
        const uint32_t b1 =
            Pair(Element(KvSide::kKeys, token, dim + 8), Element(KvSide::kKeys, token, dim + 9));
        MmaM16N8K16(s, a, b0, b1);
      }
      if (lane_ < 4) {
        scores[8 * n + 2 * lane_] = s[0];
        scores[8 * n + 2 * lane_ + 1] = s[1];
      }
    }
    __syncwarp();  // All scores are there.
    const int visible = min(kv_block, position_ - begin + 1);
    float max = max_;
    for (int j = 0; j < visible; ++j) max = fmaxf(max, scores[j]);
    const float factor = RescaleFactor(max_, max, p_.scale);
    max_ = max;
    for (int j = lane_; j < kv_block; j += 32) {
      const float p = Probability(scores[j], p_.scale, ScaledMax(max, p_.scale));
      probabilities[j] =
          j < visible ? static_cast<uint16_t>(PackBf16(p, 0.0f) & 0xFFFF) : uint16_t{0};
    }
    __syncwarp();  // All probabilities are there.
    for (int i = 0; i < 4; ++i) row_sum_[i] = __fmul_rn(row_sum_[i], factor);
    for (int k = 0; k < kv_block / 16; ++k) {
      uint32_t a[4];
      FirstRow(probabilities, k, a);
      MmaM16N8K16(row_sum_, a, kOnesBf16, kOnesBf16);
    }
    for (int n = 0; n < kHeadDim / 8; ++n) {
      for (int i = 0; i < 4; ++i) sums_[n][i] = __fmul_rn(sums_[n][i], factor);
      for (int k = 0; k < kv_block / 16; ++k) {
        uint32_t a[4];
        FirstRow(probabilities, k, a);
        const int token = begin + 16 * k + lane_ % 4 * 2;
        const int dim = 8 * n + lane_ / 4;
        const uint32_t b0 =
            Pair(Element(KvSide::kValues, token, dim), Element(KvSide::kValues, token + 1, dim));
        const uint32_t b1 = Pair(Element(KvSide::kValues, token + 8, dim),
                                 Element(KvSide::kValues, token + 9, dim));
        MmaM16N8K16(sums_[n], a, b0, b1);
      }
    }
    __syncwarp();  // Nobody reads scores or probabilities any more.
  }

  __device__ void Merge(bool first) {
    const MergeFactors factors = MergeFactorsOf(first ? max_ : merged_max_, max_, p_.scale);
    merged_max_ = factors.max;
    merged_row_sum_ = first ? row_sum_[0] : Merged(factors, merged_row_sum_, row_sum_[0]);
    for (int n = 0; n < kHeadDim / 8; ++n) {
      for (int i = 0; i < 2; ++i) {
        merged_[n][i] = first ? sums_[n][i] : Merged(factors, merged_[n][i], sums_[n][i]);
      }
    }
  }

  const AttentionParameters& p_;
  int row_;
  int head_;
  int lane_;
  int position_;
  float max_;
  float row_sum_[4];
  float sums_[kHeadDim / 8][4];
  float merged_max_;
  float merged_row_sum_;
  float merged_[kHeadDim / 8][2];
};

template <int kHeadDim>
__global__ void __launch_bounds__(32)
    AttentionReferenceKernel(const __grid_constant__ AttentionParameters p, int kv_block) {
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  WaitForKernels();
  if (p.row_sequence[row] >= 0) {
    ReferenceRow<kHeadDim>(p, row, head).Run(kv_block);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kHeadDim; i += 32) {
    p.y[(static_cast<size_t>(row) * p.q_heads + head) * kHeadDim + i] = 0;
  }
}

}  // namespace lockstep::kernels::cuda
