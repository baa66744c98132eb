#include "kernels/cuda/backend/free_splits.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/cuda/backend/step_scratch.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/timed_graph.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kSizes[] = {2 * kKvBlock, 4 * kKvBlock, kSplitKvSize, 2 * kSplitKvSize,
                          4 * kSplitKvSize};
constexpr char kPurpose[] = "timing of attention";
// One of them just above a split, where a longer one saves the second.
constexpr int kContexts[] = {1024, 1056, 1536, 2048, 4096, 8192};
// What two timings of one size may differ by.
constexpr double kWorst = 1.02;
// More than any cache holds.
constexpr int kPagesMax = 16384;
constexpr int kCallsTimed = 10;
constexpr int kRounds = 5;

// One layer's keys and values, and decode steps over them.
class Rig {
 public:
  static absl::StatusOr<Rig> Create(const StepBounds& bounds, const AttentionSchedule& schedule,
                                    cudaStream_t stream) {
    Rig rig;
    rig.bounds_ = bounds;
    rig.schedule_ = schedule;
    rig.stream_ = stream;
    rig.blocks_max_ = (bounds.context_tokens_max + kPageTokens - 1) / kPageTokens;
    rig.pages_ = std::min(kPagesMax, bounds.sequences_max * rig.blocks_max_);
    const size_t kv_elements = KvTileElements(bounds.head_dim) * 2 *
                               static_cast<size_t>(bounds.kv_heads) *
                               static_cast<size_t>(rig.pages_);
    const size_t rows = static_cast<size_t>(bounds.sequences_max);
    const size_t qkv_elements =
        rows * static_cast<size_t>((bounds.q_heads + 2 * bounds.kv_heads) * bounds.head_dim);
    const size_t ints = 3 * rows + 1 + rows * static_cast<size_t>(rig.blocks_max_);
    LOCKSTEP_ASSIGN_OR_RETURN(rig.kv_, AllocateDevice(2 * kv_elements, kPurpose));
    LOCKSTEP_ASSIGN_OR_RETURN(rig.qkv_, AllocateDevice(2 * qkv_elements, kPurpose));
    LOCKSTEP_ASSIGN_OR_RETURN(rig.y_, AllocateDevice(2 * qkv_elements, kPurpose));
    LOCKSTEP_ASSIGN_OR_RETURN(rig.inputs_, AllocateDevice(ints * sizeof(int32_t), kPurpose));
    rig.pool_ = {.data = rig.kv_.as<uint16_t>(),
                 .layers = 1,
                 .kv_heads = bounds.kv_heads,
                 .head_dim = bounds.head_dim};
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(FillUniform(rig.kv_.as<void>(), kv_elements, 1, stream), kPurpose));
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(FillUniform(rig.qkv_.as<void>(), qkv_elements, 2, stream), kPurpose));
    return rig;
  }

  // All steps from now on.
  absl::Status SetStep(int sequences, int context) {
    sequences_ = sequences;
    const size_t count = static_cast<size_t>(sequences);
    std::vector<int32_t> ints(3 * count + 1 + count * static_cast<size_t>(blocks_max_));
    const auto positions = ints.begin();
    std::fill_n(positions, sequences, context - 1);
    std::iota(positions + sequences, positions + 2 * sequences, 0);
    std::iota(positions + 2 * sequences, positions + 3 * sequences + 1, 0);
    // Pages far apart.
    constexpr int64_t kStride = 7919;
    int64_t page = 0;
    for (auto entry = positions + 3 * sequences + 1; entry != ints.end(); ++entry) {
      *entry = static_cast<int32_t>(page);
      page = (page + kStride) % pages_;
    }
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(cudaMemcpyAsync(inputs_.as<void>(), ints.data(), ints.size() * sizeof(int32_t),
                                     cudaMemcpyHostToDevice, stream_),
                     kPurpose));
    return StatusOfCuda(cudaStreamSynchronize(stream_), kPurpose);
  }

  // Microseconds of one call with splits of this size.
  absl::StatusOr<double> Time(int split_kv_size) {
    StepBounds bounds = bounds_;
    bounds.split_kv_size = split_kv_size;
    LOCKSTEP_ASSIGN_OR_RETURN(const AttentionScratch scratch, MakeAttentionScratch(bounds));
    const int32_t* const ints = inputs_.as<int32_t>();
    const AttentionCall call = {
        .args = {.shape = {.rows = sequences_, .sequences = sequences_, .blocks_max = blocks_max_},
                 .inputs = {.positions = ints,
                            .row_sequence = ints + sequences_,
                            .query_start = ints + 2 * sequences_,
                            .block_table = ints + 3 * sequences_ + 1},
                 .q_heads = bounds.q_heads,
                 .kv_heads = bounds.kv_heads,
                 .head_dim = bounds.head_dim,
                 .split_kv_size = split_kv_size,
                 .qkv = qkv_.as<void>(),
                 .y = y_.as<void>()},
        .pool = pool_,
        .limits = scratch.limits,
        .workspace = scratch.workspace,
        .schedule = schedule_};
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(PlanAttention(call, stream_), kPurpose));
    const auto turn = [&](int, cudaStream_t stream) {
      return StatusOfCuda(Attention(call, stream), kPurpose);
    };
    LOCKSTEP_ASSIGN_OR_RETURN(TimedGraph graph, TimedGraph::Capture(kCallsTimed, turn, stream_));
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double microseconds, graph.Replay());
      best = std::min(best, microseconds);
    }
    return best;
  }

 private:
  StepBounds bounds_;
  AttentionSchedule schedule_;
  cudaStream_t stream_ = nullptr;
  int blocks_max_ = 0;
  int pages_ = 0;
  int sequences_ = 0;
  KvPool pool_;
  Buffer kv_;
  Buffer qkv_;
  Buffer y_;
  Buffer inputs_;
};

}  // namespace

absl::StatusOr<FreeSplits> FreeSplits::Create(const StepBounds& bounds,
                                              const AttentionSchedule& schedule,
                                              cudaStream_t stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(Rig rig, Rig::Create(bounds, schedule, stream));
  FreeSplits splits;
  for (int batch = 1;; batch = std::min(2 * batch, bounds.sequences_max)) {
    // Time relative to the contract's size, added over contexts; at its worst, too, since a size
    // that loses anywhere would make the baseline slower there than what it is to bound.
    std::map<int, double> relative;
    std::map<int, double> worst;
    for (const int context : kContexts) {
      if (context > bounds.context_tokens_max) break;
      LOCKSTEP_RETURN_IF_ERROR(rig.SetStep(batch, context));
      LOCKSTEP_ASSIGN_OR_RETURN(const double usual, rig.Time(bounds.split_kv_size));
      for (const int size : kSizes) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double microseconds, rig.Time(size));
        relative[size] += microseconds / usual;
        worst[size] = std::max(worst[size], microseconds / usual);
      }
    }
    int fastest = bounds.split_kv_size;
    for (const auto& [size, time] : relative) {
      if (worst[size] > kWorst) continue;
      if (!relative.contains(fastest) || time < relative[fastest]) fastest = size;
    }
    splits.by_sequences_[batch] = fastest;
    if (batch == bounds.sequences_max) return splits;
  }
}

int FreeSplits::SizeFor(const StepShape& shape, int usual) const {
  if (shape.rows > shape.sequences) return usual;
  const auto found = by_sequences_.lower_bound(shape.sequences);
  return found == by_sequences_.end() ? usual : found->second;
}

std::set<int> FreeSplits::Sizes(int usual) const {
  std::set<int> sizes = {usual};
  for (const auto& [sequences, size] : by_sequences_) sizes.insert(size);
  return sizes;
}

}  // namespace lockstep::kernels::cuda
