#include "services/worker/engine/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "services/worker/engine/logprob_block.h"

namespace lockstep::worker {
namespace {

absl::Status StepError(kernels::SampleError error, int64_t position, bool stop_ids_banned) {
  if (error == kernels::SampleError::kAllBanned) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sampling.logit_bias: %sit leaves no id to draw at position %d",
        stop_ids_banned ? "with the stop ids, which stop.min_new_tokens keeps out, " : "",
        position));
  }
  return absl::InternalError(
      absl::StrFormat("the model's logits before position %d are not finite", position));
}

// Stands for a token whose id is not known yet.
constexpr int32_t kUnknownId = -1;

bool WantsDetails(const SequenceParameters& parameters) {
  return parameters.top_count > 0 || !parameters.chosen_ids.empty() || parameters.entropy;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sequence>> Sequence::Create(
    SequenceStart start, std::shared_ptr<const text::Tokenizer> tokenizer, absl::Time now) {
  LOCKSTEP_ASSIGN_OR_RETURN(StopTracker stops,
                            StopTracker::Create(start.parameters, std::move(tokenizer)));
  std::unique_ptr<Sequence> sequence(new Sequence(std::move(start), std::move(stops), now));
  LOCKSTEP_RETURN_IF_ERROR(sequence->ReplayGenerated());
  return sequence;
}

Sequence::Sequence(SequenceStart start, StopTracker stops, absl::Time now)
    : start_(std::move(start)),
      ids_(start_.prompt_ids),
      stops_(std::move(stops)),
      penalties_(start_.parameters, start_.prompt_ids),
      begun_{.prompt = start_.deliver_prompt_from > 0 ? start_.deliver_prompt_from : prompt_count(),
             .output = start_.deliver_output_from},
      delivered_(begun_),
      credit_(start_.credit_tokens),
      start_time_(now) {
  for (const IdLogitBias& bias : start_.parameters.logit_bias) {
    biases_.push_back({.id = bias.id, .value = bias.bias});
  }
  if (start_.parameters.min_new_tokens == 0) return;
  biases_before_min_ = biases_;
  for (const int32_t id : start_.parameters.stop_ids) {
    biases_before_min_.push_back({.id = id, .value = -std::numeric_limits<float>::infinity()});
  }
}

absl::Status Sequence::ReplayGenerated() {
  if (start_.parameters.max_new_tokens == 0) end_reason_ = EndReason::kLength;
  for (size_t i = 0; i < start_.generated_ids.size(); ++i) {
    if (end_reason_.has_value()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "generated_ids go on after a stop: %d ids, but the one before generated_ids[%d] ends "
          "the sequence",
          start_.generated_ids.size(), i));
    }
    Count(start_.generated_ids[i]);
  }
  prefill_length_ = length();
  if (start_.score_only && !end_reason_.has_value()) end_reason_ = EndReason::kLength;
  return absl::OkStatus();
}

void Sequence::Count(int32_t id) {
  ids_.push_back(id);
  penalties_.Add(id);
  if (std::optional<MatchedStop> match = stops_.Add(id); match.has_value()) {
    end_reason_ = EndReason::kStop;
    matched_stop_ = *std::move(match);
  } else if (output_count() == start_.parameters.max_new_tokens) {
    end_reason_ = EndReason::kLength;
  }
}

int64_t Sequence::positions_max() const {
  // The last token that may be drawn ends the sequence and is never computed.
  return draws() ? prompt_count() + start_.parameters.max_new_tokens - 1 : length();
}

bool Sequence::can_step() const {
  const bool was_preempted = !in_flight_.empty() && in_flight_.back().kv_lost;
  return !was_preempted && (draws_again() || ScoredPosition(begun_) < length());
}

bool Sequence::BeginPrefill(int64_t cached, absl::Time now) {
  LOCKSTEP_CHECK(in_flight_.empty());
  computed_ = cached;
  settled_ = cached;
  if (first_step_time_.has_value()) return false;
  first_step_time_ = now;
  cached_tokens_ = std::min(cached, prompt_count());
  return true;
}

void Sequence::Preempt() {
  computed_ = 0;
  settled_ = 0;
  prefill_length_ = length();
  for (Begun& step : in_flight_) step.kv_lost = true;
  ++preemptions_;
}

Sequence::ScoreRange Sequence::ScoredBy(int64_t tokens) const {
  // Row r scores position r + 1.
  const int64_t begin = std::max(ScoredPosition(begun_), computed_ + 1);
  return {.begin = begin, .end = std::max(begin, std::min(computed_ + tokens + 1, length()))};
}

void Sequence::Pass(const ScoreRange& range, Cursor* cursor) const {
  if (range.begin == range.end) return;
  if (cursor->prompt < prompt_count()) cursor->prompt = std::min(range.end, prompt_count());
  cursor->output = std::max(cursor->output, range.end - prompt_count());
}

StepSequence Sequence::BeginStep(int64_t tokens, std::span<const int32_t> blocks, int drawn_by) {
  LOCKSTEP_CHECK(can_step());
  const SequenceParameters& parameters = start_.parameters;
  const ScoreRange range = ScoredBy(tokens);
  const std::span<const int32_t> ids(ids_);
  StepSequence step;
  if (computed_ < length()) {
    step.tokens = ids.subspan(computed_, tokens);
  } else {
    LOCKSTEP_CHECK_EQ(tokens, 1);
    LOCKSTEP_CHECK_GE(drawn_by, 0);
    LOCKSTEP_CHECK_EQ(draws_in_flight_, 1);
    step.tokens = {&kUnknownId, 1};
    step.drawn_by = drawn_by;
  }
  step.position = computed_;
  step.blocks = blocks;
  if (range.begin < range.end) {
    step.score_begin = static_cast<int>(range.begin - 1 - computed_);
    step.score_targets = ids.subspan(range.begin, range.end - range.begin);
  }
  step.score_details = parameters.prompt_details || range.end > prompt_count();
  // Raw and scaled logprobs that come with details but were not asked for are dropped later.
  step.logprobs = parameters.logprobs || WantsDetails(parameters) ||
                  range.begin < std::min(range.end, prompt_count());
  step.temperature = parameters.temperature;
  step.top_count = parameters.top_count;
  step.chosen_ids = parameters.chosen_ids;
  step.entropy = parameters.entropy;
  step.sample = draws_again() && computed_ + tokens == begun_length();
  if (step.sample) DescribeDraw(&step);
  computed_ += tokens;
  in_flight_.push_back({.tokens_end = computed_, .scored = range, .sampled = step.sample});
  const int64_t output_before = begun_.output;
  Pass(range, &begun_);
  begun_.output += step.sample;
  draws_in_flight_ += step.sample;
  credit_ -= begun_.output - output_before;
  return step;
}

void Sequence::DescribeDraw(StepSequence* step) const {
  const SequenceParameters& parameters = start_.parameters;
  const int64_t position = begun_length();
  step->sampling = {.sub_seed = start_.sub_seed,
                    .position = position,
                    .temperature = parameters.temperature,
                    .top_k = parameters.top_k,
                    .top_p = parameters.top_p,
                    .min_p = parameters.min_p,
                    .repetition_penalty = parameters.repetition_penalty,
                    .frequency_penalty = parameters.frequency_penalty,
                    .presence_penalty = parameters.presence_penalty};
  step->biases = BeforeMin(position) ? biases_before_min_ : biases_;
  step->counts = penalties_.counts();
  step->counts_drawn = penalties_.enabled() && draws_in_flight_ > 0;
}

void Sequence::TakeResult(const StepSequenceResult& result, absl::Time now,
                          SequenceOutput* output) {
  LOCKSTEP_CHECK(!in_flight_.empty());
  const Begun step = in_flight_.front();
  in_flight_.pop_front();
  draws_in_flight_ -= step.sampled;
  if (!step.kv_lost) settled_ = step.tokens_end;
  output->ticket = start_.ticket;
  output->token_begin = delivered_.output;
  if (result.error != kernels::SampleError::kNone) {
    output->end = MakeEnd(EndReason::kError, now);
    output->end->error =
        StepError(result.error, step.tokens_end,
                  BeforeMin(step.tokens_end) && !start_.parameters.stop_ids.empty());
    return;
  }
  if (step.scored.begin < step.scored.end) TakeScores(step.scored, result.scored, output);
  if (step.sampled) TakeToken(result.sampled_id, result.sampled, now, output);
  if (step.kv_lost) prefill_length_ = length();
  if (finished()) output->end = TakeFinishedEnd(now);
}

void Sequence::TakeScores(const ScoreRange& range, const LogprobBlock& scored,
                          SequenceOutput* output) {
  const int64_t count = range.end - range.begin;
  const Cursor before = delivered_;
  Pass(range, &delivered_);
  if (before.prompt < prompt_count()) {
    LOCKSTEP_CHECK_EQ(range.begin, before.prompt);
    output->prompt_begin = range.begin;
    output->prompt_count = delivered_.prompt - range.begin;
    AppendLogprobs(scored, {.begin = 0, .end = output->prompt_count, .count = count},
                   &output->prompt_logprobs);
    if (!start_.parameters.prompt_details) DropDetails(&output->prompt_logprobs);
  }
  // Positions between the prompt and the first one to deliver were delivered by another attempt.
  const int64_t output_begin = prompt_count() + before.output;
  if (output_begin >= range.end) return;
  LOCKSTEP_CHECK_LE(range.begin, output_begin);
  output->ids.assign(ids_.begin() + output_begin, ids_.begin() + range.end);
  AppendLogprobs(scored, {.begin = output_begin - range.begin, .end = count, .count = count},
                 &output->logprobs);
  if (!start_.parameters.logprobs) DropTokenLogprobs(&output->logprobs);
}

void Sequence::TakeToken(int32_t id, const LogprobBlock& logprobs, absl::Time now,
                         SequenceOutput* output) {
  LOCKSTEP_CHECK_GE(id, 0);
  Count(id);
  ++delivered_.output;
  LOCKSTEP_CHECK_EQ(delivered_.output, output_count());
  if (!first_token_time_.has_value()) first_token_time_ = now;
  output->ids.push_back(id);
  AppendLogprobs(logprobs, {.begin = 0, .end = 1, .count = 1}, &output->logprobs);
  if (!start_.parameters.logprobs) DropTokenLogprobs(&output->logprobs);
}

SequenceEnd Sequence::TakeFinishedEnd(absl::Time now) const {
  LOCKSTEP_CHECK(finished());
  SequenceEnd end = MakeEnd(*end_reason_, now);
  end.matched_stop = matched_stop_;
  return end;
}

SequenceEnd Sequence::MakeEnd(EndReason reason, absl::Time now) const {
  return {.reason = reason, .matched_stop = {}, .error = {}, .usage = UsageAt(now)};
}

SequenceUsage Sequence::UsageAt(absl::Time now) const {
  const absl::Time first_step = first_step_time_.value_or(now);
  const absl::Time first_token = first_token_time_.value_or(now);
  return {.cached_tokens = cached_tokens_,
          .queue_seconds = absl::ToDoubleSeconds(first_step - start_time_),
          .prefill_seconds = absl::ToDoubleSeconds(first_token - first_step),
          .decode_seconds = absl::ToDoubleSeconds(now - first_token),
          .preemptions = preemptions_};
}

std::span<const base::Digest128> Sequence::BlockKeys(const PrefixScope& scope,
                                                     int64_t block_tokens) {
  const std::span<const int32_t> ids(ids_);
  while (static_cast<int64_t>(block_keys_.size() + 1) * block_tokens <= length()) {
    const base::Digest128 parent = block_keys_.empty() ? HashScope(scope) : block_keys_.back();
    const int64_t begin = static_cast<int64_t>(block_keys_.size()) * block_tokens;
    block_keys_.push_back(HashBlock(parent, ids.subspan(begin, block_tokens)));
  }
  return block_keys_;
}

}  // namespace lockstep::worker
