#include "services/worker/model/mode_timer.h"

#include <algorithm>
#include <bit>

#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

// Of the scratch KV pool: the part of one layer must not fit the caches of a device, or attention
// would be faster than it is.
constexpr size_t kScratchKvBytes = size_t{256} << 20;
// One for the first layer, with which attention plans a step, and one that all others share.
constexpr int kScratchLayers = 2;
// Neighbours in a sequence are far apart in the pool, as they come to be in a real one.
constexpr int64_t kBlockStride = 7919;

int64_t BlocksOf(int64_t tokens, int block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModeTimer>> ModeTimer::Create(Transformer* transformer,
                                                             kernels::KernelSet* kernels,
                                                             const Options& options) {
  auto timer = std::make_unique<ModeTimer>(Private(), transformer, kernels, options);
  LOCKSTEP_RETURN_IF_ERROR(timer->Allocate());
  return timer;
}

absl::Status ModeTimer::Allocate() {
  const ModelConfig& config = transformer_->config();
  kernels::KvCacheShape shape = {.layers = std::min(kScratchLayers, config.layers),
                                 .kv_heads = config.kv_heads,
                                 .head_dim = config.head_dim,
                                 .blocks = 1,
                                 .block_tokens = kernels_->traits().kv_block_tokens};
  // Only the backend knows what a block takes: ask a pool of one.
  LOCKSTEP_ASSIGN_OR_RETURN(const auto probe, kernels_->CreateKvCache(shape));
  const int64_t wanted =
      int64_t{options_.sequences_max} * BlocksOf(options_.context_tokens_max, shape.block_tokens);
  const auto affordable = static_cast<int64_t>(kScratchKvBytes / probe->bytes_per_block());
  shape.blocks = static_cast<int>(std::max<int64_t>(1, std::min(wanted, affordable)));
  LOCKSTEP_ASSIGN_OR_RETURN(kv_, kernels_->CreateKvCache(shape));
  kv_->FillWithNoise();
  const StepArrays largest(LimitsOf(options_.context_tokens_max));
  return inputs_.Allocate(kernels_, largest.BytesMax(), "inputs of shadows");
}

StepLimits ModeTimer::LimitsOf(int context_tokens_max) const {
  return {.rows_max = transformer_->options().rows_max,
          .sequences_max = options_.sequences_max,
          .context_tokens_max = context_tokens_max,
          .kv_blocks = kv_->shape().blocks,
          .kv_block_tokens = kv_->shape().block_tokens,
          .vocabulary = transformer_->config().vocabulary};
}

void ModeTimer::Build(std::span<const SequenceShape> step, int decode_rows) {
  int64_t rows = 0;
  int64_t blocks = 0;
  int64_t context = 0;
  logits_rows_ = decode_rows;
  for (const SequenceShape& sequence : step) {
    const int64_t end = sequence.position + sequence.tokens;
    rows += sequence.tokens;
    blocks += BlocksOf(end, kv_->shape().block_tokens);
    context = std::max(context, end);
    if (decode_rows == 0 && sequence.draws) ++logits_rows_;
  }
  logits_rows_ = std::min(logits_rows_, transformer_->options().logits_rows_max);
  // More blocks than the pool has are the same ones again.
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < rows; ++i) {
    ids[i] = static_cast<int32_t>(i * kBlockStride % transformer_->config().vocabulary);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    table[i] = static_cast<int32_t>(i * kBlockStride % kv_->shape().blocks);
  }
  std::vector<StepSequence> sequences;
  size_t row = 0;
  size_t block = 0;
  for (const SequenceShape& sequence : step) {
    const auto tokens = static_cast<size_t>(sequence.tokens);
    const auto count = static_cast<size_t>(
        BlocksOf(sequence.position + sequence.tokens, kv_->shape().block_tokens));
    sequences.push_back({.tokens = std::span(ids).subspan(row, tokens),
                         .position = sequence.position,
                         .blocks = std::span(table).subspan(block, count)});
    row += tokens;
    block += count;
  }
  // No wider than this step's contexts: how wide says which splits it may take.
  StepArrays arrays(LimitsOf(static_cast<int>(context)));
  inputs_.Begin(0);
  arrays.Build(sequences, decode_rows, {}, &inputs_);
  inputs_.Upload(kernels_);
  shape_ = arrays.shape();
  step_inputs_ = arrays.inputs();
}

void ModeTimer::Enqueue() {
  transformer_->Forward(shape_, step_inputs_, kv_.get());
  if (logits_rows_ > 0) transformer_->Logits(nullptr, logits_rows_);
}

absl::StatusOr<ModeTimes> ModeTimer::Time(std::span<const SequenceShape> step, int decode_rows,
                                          const base::Clock& clock) {
  using enum kernels::OpsMode;
  Build(step, decode_rows);
  const int size = decode_rows > 0
                       ? decode_rows
                       : -static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape_.rows)));
  const auto [turn, is_new] = normal_first_.try_emplace(size, true);
  if (is_new) {
    for (const kernels::OpsMode mode : {kShadow, kNormalShadow}) {
      LOCKSTEP_RETURN_IF_ERROR(WarmUp(mode));
    }
  }
  ModeTimes times;
  turn->second = !turn->second;
  for (const bool normal : {turn->second, !turn->second}) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        (normal ? times.normal : times.deterministic),
        TimeOne(normal ? kNormalShadow : kShadow, /*decodes=*/decode_rows > 0, clock));
  }
  return times;
}

absl::Status ModeTimer::WarmUp(kernels::OpsMode mode) {
  kernels_->SetMode(mode);
  Enqueue();
  kernels_->SetMode(kernels::OpsMode::kServing);
  return kernels_->Synchronize();
}

absl::StatusOr<absl::Duration> ModeTimer::TimeOne(kernels::OpsMode mode, bool decodes,
                                                  const base::Clock& clock) {
  kernels_->SetMode(mode);
  std::unique_ptr<kernels::CapturedOps> ops;
  if (decodes) ops = kernels_->Capture([this] { Enqueue(); });
  const auto run = [&] {
    if (ops != nullptr) {
      kernels_->Replay(*ops);
    } else {
      Enqueue();
    }
  };
  // Short steps follow another one, as served ones do; long ones hide what their launch takes.
  if (decodes) run();
  const uint64_t before = kernels_->Mark();
  if (decodes) run();
  absl::Status status = kernels_->WaitFor(before);
  const absl::Time begun = clock.Now();
  if (!decodes) run();
  status.Update(kernels_->Synchronize());
  const absl::Duration took = clock.Now() - begun;
  kernels_->SetMode(kernels::OpsMode::kServing);
  LOCKSTEP_RETURN_IF_ERROR(status);
  return took;
}

}  // namespace lockstep::worker
