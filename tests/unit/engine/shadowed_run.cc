#include "tests/unit/engine/shadowed_run.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

constexpr int kRequests = 12;

SequenceStart MakeRequest(int i, const ShadowedRunOptions& options) {
  // Four that share a prompt, then prompts that share a beginning.
  std::vector<int32_t> prompt = RandomIds(1, 90, options.vocabulary);
  if (i >= 4) {
    const std::vector<int32_t> own =
        RandomIds(static_cast<uint64_t>(i), 13 * i, options.vocabulary);
    prompt.insert(prompt.end(), own.begin(), own.end());
  }
  SequenceStart start = MakeStart(static_cast<uint64_t>(i + 1), std::move(prompt), 12 + i);
  start.parameters.temperature = i % 3 == 0 ? 0.0f : 0.7f + 0.1f * static_cast<float>(i);
  if (i % 4 == 1) start.parameters.frequency_penalty = 0.5f;
  if (i % 4 == 2) start.parameters.top_p = 0.9f;
  return WithPlan(std::move(start), options.split);
}

}  // namespace

ShadowedRun RunShadowed(const ShadowedRunOptions& options) {
  EngineHarness harness({.block_tokens = options.model->kv_block_tokens(),
                         .split = options.split,
                         .chunk_tokens = options.split,
                         .sequences_max = 8,
                         .context_tokens_max = 512,
                         .shadow_every_steps = options.shadow_every_steps,
                         .executor = {.vocabulary = options.vocabulary},
                         .model = options.model});
  for (int i = 0; i < kRequests; ++i) {
    const absl::Status status = harness.core().Start(MakeRequest(i, options));
    LOCKSTEP_CHECK(status.ok()) << status;
    harness.RunStep();
  }
  LOCKSTEP_CHECK(harness.RunAll());
  LOCKSTEP_CHECK(harness.core().health().ok()) << harness.core().health();
  LOCKSTEP_CHECK(harness.violations().empty()) << harness.violations().front();
  ShadowedRun run;
  for (const auto& [ticket, transcript] : harness.transcripts()) {
    run.transcripts[ticket.value()] = Describe(transcript);
  }
  const EngineMetrics& metrics = harness.metrics();
  run.steps = static_cast<int64_t>(metrics.steps.value());
  run.prefix_hit_tokens = static_cast<int64_t>(metrics.prefix_hit_tokens.value());
  run.shadows = static_cast<int64_t>(metrics.overhead.shadows.value());
  run.audit_mismatches = static_cast<int64_t>(metrics.audit_mismatches.value());
  return run;
}

}  // namespace lockstep::worker
