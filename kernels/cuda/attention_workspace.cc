#include "kernels/cuda/attention_workspace.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/contract.h"
#include "kernels/cuda/kv_layout.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Hands out consecutive parts of an allocation, or only counts them when it starts at null.
class Parts {
 public:
  explicit Parts(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}

  template <typename T>
  T* Take(size_t count) {
    uint8_t* part = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += Aligned(count * sizeof(T));
    return reinterpret_cast<T*>(part);
  }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* memory_;
  size_t bytes_ = 0;
};

// A unit holds at most kUnitRows packed rows, and the units of a split no more than the step has.
size_t PartialRowsMax(const AttentionLimits& limits) {
  const int group = limits.q_heads / limits.kv_heads;
  const int rows = std::min(limits.rows, kUnitRows / group * limits.sequences);
  return static_cast<size_t>(rows * group) * static_cast<size_t>(limits.splits_max);
}

AttentionWorkspace LayOut(const AttentionLimits& limits, Parts& parts) {
  const size_t sequences = static_cast<size_t>(limits.sequences);
  const size_t partial_rows = PartialRowsMax(limits) * static_cast<size_t>(limits.kv_heads);
  AttentionWorkspace workspace;
  workspace.list = parts.Take<AttentionWorkList>(1);
  workspace.zeros = parts.Take<uint8_t>(kSlabElements * sizeof(uint16_t));
  workspace.units = parts.Take<AttentionUnit>(sequences * static_cast<size_t>(limits.splits_max));
  // The smallest tile is one token.
  workspace.tiles =
      parts.Take<AttentionTile>(static_cast<size_t>(TilesMax(limits.rows, limits.sequences, 1)));
  workspace.arrived = parts.Take<uint32_t>(sequences * static_cast<size_t>(limits.kv_heads));
  workspace.partial_sums = parts.Take<float>(partial_rows * static_cast<size_t>(limits.head_dim));
  workspace.partial_states = parts.Take<float>(partial_rows * 2);
  return workspace;
}

}  // namespace

float AttentionScale(int head_dim) {
  constexpr double kLog2E = 1.4426950408889634;
  return static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim)));
}

int TilesMax(int rows, int sequences, int tile_tokens) {
  const int tiles_of_page = (kPageTokens + tile_tokens - 1) / tile_tokens;
  // Pages that a sequence begins or ends inside cost one tile each beyond their part of a page's.
  return rows * tiles_of_page / kPageTokens + 2 * std::min(sequences, rows);
}

size_t AttentionWorkspaceBytes(const AttentionLimits& limits) {
  Parts parts(nullptr);
  LayOut(limits, parts);
  return parts.bytes();
}

AttentionWorkspace LayOutAttentionWorkspace(const AttentionLimits& limits, void* memory) {
  Parts parts(memory);
  return LayOut(limits, parts);
}

}  // namespace lockstep::kernels::cuda
