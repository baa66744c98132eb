#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "services/text/tokenizer.h"
#include "services/worker/engine/engine_core.h"
#include "services/worker/engine/engine_metrics.h"
#include "tests/unit/engine/hash_executor.h"

namespace lockstep::worker {

// All that one attempt of a sequence delivered, put together by position.
struct Transcript {
  int64_t token_begin = -1;  // Of the first output.
  std::vector<int32_t> ids;
  LogprobBlock logprobs;
  int64_t prompt_begin = -1;
  int64_t prompt_count = 0;
  LogprobBlock prompt_logprobs;
  std::optional<SequenceEnd> end;
  bool handed_off = false;
};

// Everything that a client may rely on, as text: two runs are equal iff their texts are. Floats are
// printed by their bits; usage is left out.
std::string Describe(const Transcript& transcript);

// An EngineCore over a HashExecutor with simulated time, which collects and checks what comes out:
// positions without gap or repetition, cuts only where the plan allows, one end each.
class EngineHarness {
 public:
  struct Options {
    int block_count = 64;
    int block_tokens = 16;
    int64_t split = 32;
    int64_t chunk_tokens = 64;
    int64_t sequences_max = 256;
    int64_t context_tokens_max = 4096;
    int64_t waiting_max = 4096;
    bool prefix_cache = true;
    int64_t shadow_every_steps = 0;
    HashExecutor::Options executor;  // Block fields are taken from above.
    // Runs on this one instead, whose block size and vocabulary the fields above then say.
    StepExecutor* model = nullptr;
  };
  explicit EngineHarness(const Options& options);
  ~EngineHarness();

  EngineCore& core() { return *core_; }
  HashExecutor& executor() { return executor_; }
  EngineMetrics& metrics() { return metrics_; }
  base::SimClock& clock() { return clock_; }
  const std::map<base::TicketId, Transcript>& transcripts() const { return transcripts_; }
  const Transcript& transcript(uint64_t ticket) { return transcripts_[base::TicketId(ticket)]; }
  const std::vector<Cut>& cuts() const { return cuts_; }
  const std::vector<std::string>& violations() const;

  // RunStep until nothing is left to run; false when that takes more than `steps_max` steps.
  bool RunAll(int64_t steps_max = 100000);
  // One step; time moves on by a millisecond.
  bool RunStep();
  // Blocks that no sequence uses, cached ones included.
  int64_t blocks_free() const { return core_->Snapshot().kv_blocks_free; }

 private:
  void Collect(StepOutput output);
  void CheckCut(const Cut& cut);

  const Options options_;
  base::SimClock clock_;
  metrics::Registry registry_;
  EngineMetrics metrics_;
  HashExecutor executor_;
  std::map<base::TicketId, Transcript> transcripts_;
  std::vector<Cut> cuts_;
  std::vector<std::string> violations_;
  std::unique_ptr<EngineCore> core_;
};

// Tokens are single letters, id 0 is 'a'; ids from 26 on are pairs of letters, so that stop strings
// lie across tokens. 64 ids in all.
std::shared_ptr<const text::Tokenizer> LetterTokenizer();

// A start with a plan that fits its ids; tests change what they need before Finish.
SequenceStart MakeStart(uint64_t ticket, std::vector<int32_t> prompt_ids, int64_t max_new_tokens);
// Sets what follows from the ids: the plan.
SequenceStart WithPlan(SequenceStart start, int64_t split);
std::vector<int32_t> RandomIds(uint64_t seed, int64_t count, int32_t vocabulary = 64);
// The same start computed by itself: batch of 1, no prefix cache, room for everything, as much
// credit as it likes.
Transcript RunAlone(SequenceStart start, int64_t split = 32);

}  // namespace lockstep::worker
