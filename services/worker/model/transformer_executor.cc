#include "services/worker/model/transformer_executor.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

// Replays after which a step is captured anew: what the audit looks at is chosen by a capture. It
// takes some milliseconds, while a step runs on the device.
constexpr int kReplaysOfCapture = 1024;

StepLimits LimitsOf(const TransformerExecutor::Parts& parts,
                    const TransformerExecutor::Options& options) {
  return {.rows_max = parts.transformer->options().rows_max,
          .sequences_max = options.sequences_max,
          .context_tokens_max = options.context_tokens_max,
          .kv_blocks = parts.kv->shape().blocks,
          .kv_block_tokens = parts.kv->shape().block_tokens,
          .vocabulary = parts.transformer->config().vocabulary};
}

}  // namespace

int PaddedDecodeRows(int sequences, int sequences_max) {
  int padded = sequences;
  if (sequences <= 8) {
    padded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(sequences)));
  } else {
    const int step = sequences <= 64 ? 8 : sequences <= 256 ? 16 : 64;
    padded = (sequences + step - 1) / step * step;
  }
  return std::min(padded, std::max(sequences, sequences_max));
}

TransformerExecutor::TransformerExecutor(Parts parts, const Options& options)
    : options_(options),
      parts_(std::move(parts)),
      arrays_(LimitsOf(parts_, options)),
      head_(parts_.transformer.get(), parts_.kernels.get(),
            {.rows_max = parts_.transformer->options().rows_max,
             .sequences_max = options.sequences_max,
             .vocabulary_sampled = options.vocabulary_sampled}) {}

// Copies still on their way use the host's memory.
TransformerExecutor::~TransformerExecutor() { parts_.kernels->Synchronize().IgnoreError(); }

absl::StatusOr<std::unique_ptr<TransformerExecutor>> TransformerExecutor::Create(
    Parts parts, const Options& options) {
  auto executor = std::make_unique<TransformerExecutor>(std::move(parts), options);
  LOCKSTEP_RETURN_IF_ERROR(executor->inputs_.Allocate(
      executor->parts_.kernels.get(), executor->arrays_.BytesMax() + executor->head_.BytesMax(),
      "step inputs"));
  LOCKSTEP_RETURN_IF_ERROR(executor->head_.Allocate());
  return executor;
}

absl::Status TransformerExecutor::Launch(std::span<const StepSequence> sequences) {
  LOCKSTEP_CHECK_LT(launched_ - collected_, uint64_t{kStepsInFlightMax});
  const int slot = static_cast<int>(launched_ % kStepsInFlightMax);
  ++launched_;
  const int decode_rows = DecodeRows(sequences);
  drawn_ids_ = head_.drawn_ids();
  parts_.kernels->BeginStep();
  inputs_.Begin(slot);
  arrays_.Build(sequences, decode_rows, head_.drawn_slots(), &inputs_);
  LOCKSTEP_RETURN_IF_ERROR(
      head_.Build(sequences, arrays_.query_start(), decode_rows, slot, &inputs_));
  inputs_.Upload(parts_.kernels.get());
  if (decode_rows > 0 && options_.captures) {
    EnqueueDecode({decode_rows, head_.logprobs(), head_.counts_drawn()});
  } else {
    EnqueueStep();
  }
  head_.Download();
  marks_[slot] = parts_.kernels->Mark();
  return absl::OkStatus();
}

absl::Status TransformerExecutor::Collect(std::vector<StepSequenceResult>* results) {
  LOCKSTEP_CHECK_LT(collected_, launched_);
  const int slot = static_cast<int>(collected_ % kStepsInFlightMax);
  ++collected_;
  LOCKSTEP_RETURN_IF_ERROR(parts_.kernels->WaitFor(marks_[slot]));
  head_.Collect(slot, results);
  return absl::OkStatus();
}

absl::StatusOr<ModeTimes> TransformerExecutor::TimeModes(std::span<const SequenceShape> step,
                                                         const base::Clock& clock) {
  LOCKSTEP_CHECK(times_modes());
  LOCKSTEP_CHECK_EQ(launched_, collected_);
  const bool decodes = std::ranges::all_of(
      step, [](const SequenceShape& sequence) { return sequence.tokens == 1 && sequence.draws; });
  const bool pads = decodes && parts_.kernels->asynchronous();
  return parts_.mode_timer->Time(step, pads ? PaddedRows(step.size()) : 0, clock);
}

int TransformerExecutor::DecodeRows(std::span<const StepSequence> sequences) const {
  if (!parts_.kernels->asynchronous()) return 0;
  const bool decodes = std::ranges::all_of(sequences, [](const StepSequence& sequence) {
    return sequence.tokens.size() == 1 && sequence.sample && sequence.score_targets.empty();
  });
  return sequences.empty() || !decodes ? 0 : PaddedRows(sequences.size());
}

int TransformerExecutor::PaddedRows(size_t sequences) const {
  const int rows = PaddedDecodeRows(static_cast<int>(sequences), options_.sequences_max);
  return rows <= parts_.transformer->options().logits_rows_max ? rows : 0;
}

void TransformerExecutor::EnqueueStep() {
  kernels::StepInputs inputs = arrays_.inputs();
  inputs.drawn_ids = drawn_ids_;
  if (arrays_.shape().rows > 0) {
    parts_.transformer->Forward(arrays_.shape(), inputs, parts_.kv.get());
  }
  head_.Enqueue();
}

void TransformerExecutor::EnqueueDecode(const DecodeShape& shape) {
  if (captured_generation_ != head_.generation()) captured_.clear();
  captured_generation_ = head_.generation();
  const auto [found, first] = captured_.try_emplace(shape);
  CapturedDecode& decode = found->second;
  // What runs for the first time may load code, which cannot be captured.
  if (!first && (decode.ops == nullptr || decode.replays == kReplaysOfCapture)) {
    decode = {.ops = parts_.kernels->Capture([this] { EnqueueStep(); })};
  }
  if (decode.ops == nullptr) return EnqueueStep();
  parts_.kernels->Replay(*decode.ops);
  ++decode.replays;
  parts_.transformer->CountReplay();
  ++replays_;
}

}  // namespace lockstep::worker
