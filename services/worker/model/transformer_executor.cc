#include "services/worker/model/transformer_executor.h"

#include <utility>

#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

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

TransformerExecutor::TransformerExecutor(Parts parts, const Options& options)
    : parts_(std::move(parts)),
      arrays_(LimitsOf(parts_, options)),
      head_(parts_.transformer.get(), parts_.kernels.get(), options.vocabulary_sampled) {}

absl::StatusOr<std::unique_ptr<TransformerExecutor>> TransformerExecutor::Create(
    Parts parts, const Options& options) {
  auto executor = std::make_unique<TransformerExecutor>(std::move(parts), options);
  LOCKSTEP_RETURN_IF_ERROR(executor->arrays_.Allocate(executor->parts_.kernels.get()));
  LOCKSTEP_RETURN_IF_ERROR(executor->head_.Allocate());
  return executor;
}

absl::Status TransformerExecutor::Execute(std::span<const StepSequence> sequences,
                                          std::vector<StepSequenceResult>* results) {
  results->assign(sequences.size(), {});
  if (sequences.empty()) return absl::OkStatus();
  arrays_.Build(sequences);
  arrays_.Upload(parts_.kernels.get());
  parts_.transformer->Forward(arrays_.shape(), arrays_.inputs(), parts_.kv.get());
  return head_.Run(sequences, arrays_.query_start(), results);
}

}  // namespace lockstep::worker
