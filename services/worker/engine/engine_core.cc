#include "services/worker/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/retry_advice.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

absl::Status CheckOptions(const EngineOptions& options, const EngineDeps& deps) {
  const int block_tokens = deps.executor->kv_block_tokens();
  if (options.split_kv_size <= 0 || options.split_kv_size % block_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("split_kv_size %d is not a positive multiple of the KV block of %d tokens",
                        options.split_kv_size, block_tokens));
  }
  if (options.chunk_tokens <= 0 || options.chunk_tokens % options.split_kv_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("chunk_tokens %d is not a positive multiple of split_kv_size %d",
                        options.chunk_tokens, options.split_kv_size));
  }
  if (options.sequences_max <= 0 || options.context_tokens_max <= 0 || options.waiting_max <= 0 ||
      options.vocabulary <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequences_max %d, context_tokens_max %d, waiting_max %d and vocabulary %d must be "
        "positive",
        options.sequences_max, options.context_tokens_max, options.waiting_max,
        options.vocabulary));
  }
  return absl::OkStatus();
}

StartLimits MakeLimits(const EngineOptions& options, const EngineDeps& deps) {
  return {
      .split_kv_size = options.split_kv_size,
      .context_tokens_max = options.context_tokens_max,
      .kv_tokens_max = int64_t{deps.executor->kv_block_count()} * deps.executor->kv_block_tokens(),
      .vocabulary = options.vocabulary,
      .has_tokenizer = deps.tokenizer != nullptr};
}

bool IsEmpty(const StepOutput& output) {
  return output.outputs.empty() && output.hand_offs.empty() && output.cuts.empty();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(EngineOptions options,
                                                               EngineDeps deps) {
  LOCKSTEP_CHECK(deps.executor != nullptr && deps.clock != nullptr && deps.metrics != nullptr);
  LOCKSTEP_CHECK(deps.on_step != nullptr);
  LOCKSTEP_RETURN_IF_ERROR(CheckOptions(options, deps));
  return std::unique_ptr<EngineCore>(new EngineCore(std::move(options), std::move(deps)));
}

EngineCore::EngineCore(EngineOptions options, EngineDeps deps)
    : options_(std::move(options)),
      deps_(std::move(deps)),
      limits_(MakeLimits(options_, deps_)),
      index_({.block_count = deps_.executor->kv_block_count(),
              .block_tokens = deps_.executor->kv_block_tokens()}),
      selector_({.split_kv_size = options_.split_kv_size,
                 .chunk_tokens = options_.chunk_tokens,
                 .sequences_max = options_.sequences_max},
                &index_, deps_.metrics),
      overhead_(options_.shadow_every_steps, deps_.executor, deps_.clock,
                &deps_.metrics->overhead) {
  SetGauges();
}

EngineCore::~EngineCore() = default;

absl::StatusOr<std::unique_ptr<Sequence>> EngineCore::MakeSequence(SequenceStart start) const {
  LOCKSTEP_RETURN_IF_ERROR(ValidateStart(limits_, start));
  return Sequence::Create(std::move(start), deps_.tokenizer, deps_.clock->Now());
}

absl::Status EngineCore::Start(SequenceStart start) {
  LOCKSTEP_RETURN_IF_ERROR(health_);
  if (handing_off_) return absl::FailedPreconditionError("this worker hands its sequences off");
  if (held_.contains(start.ticket)) {
    return absl::AlreadyExistsError(absl::StrCat("ticket ", start.ticket.value(), " runs already"));
  }
  if (waiting_count() >= options_.waiting_max) {
    return base::WithRetryAdvice(
        absl::ResourceExhaustedError(absl::StrCat(waiting_count(), " sequences wait already")),
        {.retryable = true, .delay = absl::Seconds(1)});
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence, MakeSequence(std::move(start)));
  Add(std::move(sequence));
  return absl::OkStatus();
}

void EngineCore::Add(std::unique_ptr<Sequence> sequence) {
  const SequenceStart& start = sequence->start();
  if (!start.generated_ids.empty()) deps_.metrics->resumptions.Increment();
  auto scope = std::make_shared<const PrefixScope>(
      PrefixScope{start.cache_namespace, options_.weight_version});
  const bool shares = options_.prefix_cache && !start.disable_prefix_cache;
  auto [it, inserted] =
      held_.try_emplace(start.ticket, std::make_unique<HeldSequence>(HeldSequence{
                                          .sequence = std::move(sequence),
                                          .kv = SequenceKv(&index_, std::move(scope), shares),
                                          .age = next_age_++}));
  LOCKSTEP_CHECK(inserted);
  HeldSequence* const held = it->second.get();
  selector_.Add(held);
  const absl::Time deadline = held->sequence->start().deadline;
  if (deadline != absl::InfiniteFuture()) {
    deadlines_.insert({deadline, held->sequence->start().ticket});
  }
  if (held->sequence->finished()) {
    EndNow(held, held->sequence->TakeFinishedEnd(deps_.clock->Now()));
  }
}

void EngineCore::Cancel(base::TicketId ticket) {
  const auto it = held_.find(ticket);
  if (it == held_.end()) return;
  HeldSequence* const held = it->second.get();
  EndNow(held, held->sequence->MakeEnd(EndReason::kAbort, deps_.clock->Now()));
}

void EngineCore::AddCredit(base::TicketId ticket, int64_t tokens) {
  if (const auto it = held_.find(ticket); it != held_.end()) {
    it->second->sequence->AddCredit(tokens);
  }
}

std::vector<HeldSequence*> EngineCore::ByAge() const {
  std::vector<HeldSequence*> sequences;
  for (const auto& [ticket, held] : held_) sequences.push_back(held.get());
  std::ranges::sort(sequences, {}, &HeldSequence::age);
  return sequences;
}

template <typename Predicate>
int64_t EngineCore::AbortIf(const Predicate& matches) {
  int64_t ended = 0;
  for (HeldSequence* held : ByAge()) {
    if (!matches(held->sequence->start())) continue;
    EndNow(held, held->sequence->MakeEnd(EndReason::kAbort, deps_.clock->Now()));
    ++ended;
  }
  return ended;
}

int64_t EngineCore::AbortRequests(std::span<const base::RequestId> requests,
                                  std::vector<base::RequestId>* known) {
  const absl::flat_hash_set<base::RequestId> wanted(requests.begin(), requests.end());
  absl::flat_hash_set<base::RequestId> seen;
  const int64_t ended = AbortIf([&](const SequenceStart& start) {
    if (!wanted.contains(start.request)) return false;
    if (seen.insert(start.request).second) known->push_back(start.request);
    return true;
  });
  return ended;
}

int64_t EngineCore::AbortOlderThan(base::Epoch epoch) {
  return AbortIf([&](const SequenceStart& start) { return start.entry_epoch < epoch; });
}

int64_t EngineCore::FlushCache(const std::optional<std::string>& cache_namespace) {
  const int64_t freed = index_.Flush(cache_namespace);
  SetGauges();
  return freed;
}

void EngineCore::HandOffAll() {
  handing_off_ = true;
  for (HeldSequence* held : ByAge()) {
    pending_.hand_offs.push_back(held->sequence->start().ticket);
    deps_.metrics->sequences_handed_off.Increment();
    Forget(held);
  }
}

void EngineCore::EndNow(HeldSequence* held, SequenceEnd end) {
  SequenceOutput output;
  output.ticket = held->sequence->start().ticket;
  output.token_begin = held->sequence->next_output();
  output.weight_version = options_.weight_version;
  deps_.metrics->sequences_ended[end.reason].Increment();
  output.end = std::move(end);
  pending_.outputs.push_back(std::move(output));
  Forget(held);
}

void EngineCore::Forget(HeldSequence* held) {
  selector_.Remove(held);
  for (StepInFlight& step : in_flight_) {
    for (Part& part : step.parts) {
      if (part.held == held) part.held = nullptr;
    }
  }
  const base::TicketId ticket = held->sequence->start().ticket;
  deadlines_.erase({held->sequence->start().deadline, ticket});
  held_.erase(ticket);
}

absl::Time EngineCore::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

void EngineCore::DeliverPending() {
  const absl::Time now = deps_.clock->Now();
  while (next_deadline() <= now) Cancel(deadlines_.begin()->second);
  if (IsEmpty(pending_)) return;
  SetGauges();
  pending_.step = steps_;
  deps_.on_step(std::exchange(pending_, {}));
}

void EngineCore::SetHold(bool hold) {
  hold_ = hold;
  // Nothing is delivered while it holds.
  while (hold_ && health_.ok() && !in_flight_.empty()) CollectStep();
}

bool EngineCore::RunStep() {
  DeliverPending();
  // An engine that lost its device has work and does not progress: its lease must end.
  idle_ = false;
  if (!health_.ok()) return false;
  if (overhead_.due() && !hold_) {
    if (!in_flight_.empty()) {
      CollectStep();
      return health_.ok();
    }
    if (const absl::Status status = overhead_.Measure(); !status.ok()) {
      Fail(status);
      return false;
    }
  }
  const bool launched = !hold_ && LaunchStep();
  const size_t ahead = launched && deps_.executor->asynchronous() ? 1 : 0;
  const bool collects = in_flight_.size() > ahead;
  if (health_.ok() && collects) CollectStep();
  const bool worked = health_.ok() && (launched || collects);
  idle_ = health_.ok() && !worked;
  return worked;
}

bool EngineCore::LaunchStep() {
  const absl::Time plan_begin = deps_.clock->Now();
  const std::vector<Planned> planned = selector_.Select(plan_begin);
  if (planned.empty()) return false;
  StepInFlight step;
  sequences_.clear();
  for (const Planned& item : planned) {
    HeldSequence* const held = item.held;
    Sequence& sequence = *held->sequence;
    step.parts.push_back({.held = held,
                          .begin = sequence.computed(),
                          .tokens = item.tokens,
                          .prefill_length = sequence.prefill_length()});
    step.rows += item.tokens;
    const auto blocks = held->kv.BlocksOf(sequence.computed() + item.tokens);
    sequences_.push_back(sequence.BeginStep(item.tokens, blocks, held->step_index));
    held->step_index = static_cast<int>(step.parts.size()) - 1;
  }
  step.bucket = overhead_.Begin(sequences_);
  step.launched = deps_.clock->Now();
  deps_.metrics->plan_seconds.Observe(step.launched - plan_begin);
  if (const absl::Status status = deps_.executor->Launch(sequences_); !status.ok()) {
    Fail(status);
    return false;
  }
  in_flight_.push_back(std::move(step));
  return true;
}

void EngineCore::CollectStep() {
  const StepInFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  results_.clear();
  if (const absl::Status status = deps_.executor->Collect(&results_); !status.ok()) {
    return Fail(status);
  }
  LOCKSTEP_CHECK_EQ(results_.size(), step.parts.size());
  MeasureStep(step);
  StepOutput output;
  output.step = ++steps_;
  output.outputs.reserve(step.parts.size());
  for (size_t i = 0; i < step.parts.size(); ++i) {
    if (step.parts[i].held == nullptr) continue;
    SequenceOutput result = TakeResult(step.parts[i], results_[i], &output.cuts);
    const bool is_empty = result.ids.empty() && result.prompt_count == 0 && !result.end;
    if (!is_empty) output.outputs.push_back(std::move(result));
  }
  SetGauges();
  if (!IsEmpty(output)) deps_.on_step(std::move(output));
}

void EngineCore::Fail(const absl::Status& status) {
  MeasureAudit();
  health_ = status;
  if (deps_.on_failure) deps_.on_failure(status);
}

void EngineCore::MeasureStep(const StepInFlight& step) {
  EngineMetrics& metrics = *deps_.metrics;
  const absl::Time now = deps_.clock->Now();
  // A step begins when the one before it has ended.
  const absl::Duration duration = now - std::max(step.launched, collected_);
  metrics.step_seconds.Observe(duration);
  overhead_.Serve(step.bucket, duration);
  collected_ = now;
  metrics.steps.Increment();
  MeasureAudit();
  metrics.batch_sequences.Observe(static_cast<double>(step.parts.size()));
  metrics.batch_rows.Observe(static_cast<double>(step.rows));
  batch_max_ = std::max(batch_max_, static_cast<int64_t>(step.parts.size()));
}

void EngineCore::MeasureAudit() {
  const kernels::AuditCounts counts = deps_.executor->audit();
  deps_.metrics->audit_rows.Increment(static_cast<double>(counts.rows - audited_.rows));
  deps_.metrics->audit_mismatches.Increment(
      static_cast<double>(counts.mismatches - audited_.mismatches));
  audited_ = counts;
}

SequenceOutput EngineCore::TakeResult(const Part& part, const StepSequenceResult& result,
                                      std::vector<Cut>* cuts) {
  HeldSequence* const held = part.held;
  Sequence& sequence = *held->sequence;
  if (part.begin < part.prefill_length) MeasurePrefill(part, cuts);
  const absl::Time now = deps_.clock->Now();
  const int64_t length_before = sequence.length();
  SequenceOutput output;
  output.weight_version = options_.weight_version;
  sequence.TakeResult(result, now, &output);
  if (sequence.length() > length_before) MeasureToken(held, now);
  // What a row with bad values left behind is nobody else's prefix.
  if (result.error == kernels::SampleError::kNone) {
    held->kv.Publish(sequence.ids(), sequence.settled());
  }
  if (output.end.has_value()) {
    deps_.metrics->sequences_ended[output.end->reason].Increment();
    Forget(held);
  }
  return output;
}

void EngineCore::MeasurePrefill(const Part& part, std::vector<Cut>* cuts) {
  const Sequence& sequence = *part.held->sequence;
  const int64_t end = part.begin + part.tokens;
  cuts->push_back({.ticket = sequence.start().ticket,
                   .begin = part.begin,
                   .end = end,
                   .length = part.prefill_length});
  EngineMetrics& metrics = *deps_.metrics;
  metrics.prefill_chunks.Increment();
  if (end < part.prefill_length) metrics.prefill_cuts.Increment();
  metrics.tokens_prefilled.Increment(static_cast<double>(part.tokens));
  const int64_t prompt_tokens = std::min(end, sequence.prompt_count()) - part.begin;
  if (prompt_tokens > 0) {
    metrics.prompt_tokens_prefilled.Increment(static_cast<double>(prompt_tokens));
  }
}

void EngineCore::MeasureToken(HeldSequence* held, absl::Time now) {
  EngineMetrics& metrics = *deps_.metrics;
  metrics.tokens_generated.Increment();
  if (held->last_token_time.has_value()) {
    metrics.inter_token_seconds.Observe(now - *held->last_token_time);
  } else {
    metrics.first_token_seconds.Observe(now - held->sequence->start_time());
  }
  held->last_token_time = now;
}

void EngineCore::SetGauges() {
  EngineMetrics& metrics = *deps_.metrics;
  metrics.kv_blocks_free.Set(static_cast<double>(index_.available_count()));
  metrics.kv_blocks_used.Set(static_cast<double>(index_.block_count() - index_.available_count()));
  metrics.kv_blocks_cached.Set(static_cast<double>(index_.indexed_count()));
  metrics.sequences_running.Set(static_cast<double>(selector_.running_count()));
  metrics.sequences_waiting.Set(static_cast<double>(selector_.waiting_count()));
  metrics.batch_sequences_max.Set(static_cast<double>(batch_max_));
}

EngineSnapshot EngineCore::Snapshot(bool with_held) const {
  EngineSnapshot snapshot;
  snapshot.steps = steps_;
  snapshot.idle = idle_;
  snapshot.kv_blocks_free = index_.available_count();
  if (!with_held) return snapshot;
  for (const HeldSequence* held : ByAge()) {
    const SequenceStart& start = held->sequence->start();
    snapshot.held.push_back({.ticket = start.ticket,
                             .sequence = start.sequence,
                             .attempt = start.attempt,
                             .kv_blocks = static_cast<int64_t>(held->kv.blocks().size())});
  }
  return snapshot;
}

}  // namespace lockstep::worker
