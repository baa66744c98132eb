#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "kernels/api/sampling.h"
#include "services/text/tokenizer.h"
#include "services/worker/engine/penalty_counts.h"
#include "services/worker/engine/sequence_kv.h"
#include "services/worker/engine/sequence_start.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/engine/step_output.h"
#include "services/worker/engine/stop_tracker.h"

namespace lockstep::worker {

// One sequence from its start to its end: its tokens, how far they are computed and delivered, and
// what decides the next one. Apart from KV and times everything is a function of {prompt, generated
// ids, parameters}, so a sequence that is preempted, or resumed elsewhere, goes on with the same
// bits.
//
// Output position i is token prompt_count + i. The logprob of the token at position p is scored
// from row p - 1; rows are scored where the start asks for delivery of tokens that exist already. A
// drawn token's noise is keyed by its absolute position. Stop ids are banned from output positions
// below min_new_tokens. A stop and the length limit met by one token count as the stop.
//
// Steps are begun before the results of earlier ones are there. What a step runs follows from how
// many tokens there will be, which is known; only their ids are not. Planning therefore looks at
// what was begun, delivery at results. A sequence that turns out to have stopped is dropped by its
// owner together with what it still has in flight.
//
// Used by the engine loop's thread; Create may run on any thread.
class Sequence {
 public:
  // The start was validated. InvalidArgument when generated ids go on after a stop.
  static absl::StatusOr<std::unique_ptr<Sequence>> Create(
      SequenceStart start, std::shared_ptr<const text::Tokenizer> tokenizer, absl::Time now);

  const SequenceStart& start() const { return start_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }
  int64_t prompt_count() const { return static_cast<int64_t>(start_.prompt_ids.size()); }
  int64_t output_count() const { return length() - prompt_count(); }
  // Positions whose KV is there once the steps in flight have run. Below prefill_length it
  // prefills, from there on it decodes.
  int64_t computed() const { return computed_; }
  // Positions whose KV is there, as results tell.
  int64_t settled() const { return settled_; }
  int64_t prefill_length() const { return prefill_length_; }
  // The first row that has to be computed whatever is cached: its logits are wanted.
  int64_t first_row_wanted() const { return ScoredPosition(begun_) - 1; }
  // Positions that may need KV before the sequence ends.
  int64_t positions_max() const;

  // Its next step would deliver output tokens that the reader has not asked for.
  bool stalled() const { return delivers_output() && credit_ <= 0; }
  void AddCredit(int64_t tokens) { credit_ += tokens; }
  // Something is left to compute, and what is in flight need not be there for it.
  bool can_step() const;
  // Nothing is left to compute: it met its end before it began.
  bool finished() const { return !draws() && ScoredPosition(delivered_) >= length(); }

  // Computation begins, or begins again, behind `cached` tokens. True for the first time.
  bool BeginPrefill(int64_t cached, absl::Time now);
  // Its KV is gone; prefill will cover prompt and generated tokens, those in flight included: it
  // cannot step before they are there.
  void Preempt();

  // Its part of a step that runs `tokens` tokens. Spans point into the sequence and `blocks`, and
  // live until it changes. `drawn_by` says who draws the token to run, when that is in flight.
  StepSequence BeginStep(int64_t tokens, std::span<const int32_t> blocks, int drawn_by);
  // The result of the oldest step begun and not taken. Appends what is new to `output`, its end
  // included.
  void TakeResult(const StepSequenceResult& result, absl::Time now, SequenceOutput* output);
  // For an end that has other reasons than a result.
  SequenceEnd MakeEnd(EndReason reason, absl::Time now) const;
  // The end of a finished() sequence.
  SequenceEnd TakeFinishedEnd(absl::Time now) const;

  // Keys of the whole blocks of its tokens, for recognising a prefix that is being computed.
  std::span<const base::Digest128> BlockKeys(const PrefixScope& scope, int64_t block_tokens);

  absl::Time start_time() const { return start_time_; }
  int64_t next_output() const { return delivered_.output; }

 private:
  struct ScoreRange {
    int64_t begin = 0;  // Absolute positions of tokens.
    int64_t end = 0;
  };

  // What comes next: begun, or delivered.
  struct Cursor {
    int64_t prompt = 0;  // Prompt position to score; prompt_count() when none is left.
    int64_t output = 0;  // Output position.
  };
  struct Begun {
    int64_t tokens_end = 0;  // Positions that are computed then.
    ScoreRange scored;
    bool sampled = false;
    bool kv_lost = false;  // It was preempted since.
  };

  Sequence(SequenceStart start, StopTracker stops, absl::Time now);

  absl::Status ReplayGenerated();
  bool draws() const { return !end_reason_.has_value(); }
  // Tokens that there are once the steps in flight have run, unless one of them stops.
  int64_t begun_length() const { return length() + draws_in_flight_; }
  bool draws_again() const {
    return draws() && begun_length() - prompt_count() < start_.parameters.max_new_tokens;
  }
  bool delivers_output() const { return draws_again() || begun_.output < output_count(); }
  int64_t ScoredPosition(const Cursor& cursor) const {
    return cursor.prompt < prompt_count() ? cursor.prompt : prompt_count() + cursor.output;
  }
  ScoreRange ScoredBy(int64_t tokens) const;
  void DescribeDraw(StepSequence* step) const;
  // Whether min_new_tokens keeps stops away from the token at `position`.
  bool BeforeMin(int64_t position) const {
    return position - prompt_count() < start_.parameters.min_new_tokens;
  }
  void Pass(const ScoreRange& range, Cursor* cursor) const;
  void TakeScores(const ScoreRange& range, const LogprobBlock& scored, SequenceOutput* output);
  void TakeToken(int32_t id, const LogprobBlock& logprobs, absl::Time now, SequenceOutput* output);
  // Counts an output token, and notes the end that it means.
  void Count(int32_t id);
  SequenceUsage UsageAt(absl::Time now) const;

  const SequenceStart start_;
  std::vector<int32_t> ids_;  // Prompt and output.
  StopTracker stops_;
  PenaltyCounts penalties_;
  std::vector<kernels::IdBias> biases_;
  std::vector<kernels::IdBias> biases_before_min_;  // With the bans of stop ids.

  int64_t computed_ = 0;
  int64_t settled_ = 0;
  int64_t prefill_length_ = 0;
  Cursor begun_;
  Cursor delivered_;
  std::deque<Begun> in_flight_;  // Oldest first.
  int64_t draws_in_flight_ = 0;
  int64_t credit_ = 0;                   // Less what steps in flight will deliver.
  std::optional<EndReason> end_reason_;  // Met, perhaps before its scores are delivered.
  MatchedStop matched_stop_;
  std::vector<base::Digest128> block_keys_;

  const absl::Time start_time_;
  std::optional<absl::Time> first_step_time_;
  std::optional<absl::Time> first_token_time_;
  int64_t cached_tokens_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace lockstep::worker
