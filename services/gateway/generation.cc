#include "services/gateway/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/deadline_margin.h"
#include "services/gateway/credit_window.h"

namespace lockstep::gateway {
namespace {

// Of a request: its entry in a table, its compiled stops, the allocator's own.
constexpr size_t kUncountedBytes = 768;
// Of a sample: seed, credit, digests of weights.
constexpr size_t kUncountedSampleBytes = 128;
// Copies of the id: here, as trace, and in a table.
constexpr size_t kNamesOfRequest = 4;
// Tags and lengths around the parts of a message.
constexpr size_t kFramingBytes = 64;
constexpr size_t kFramingBytesOfSample = 8;
// What the hops after this one keep back of a request's time, together.
constexpr base::DeadlineMargin kHopsMargin = {.max = absl::Milliseconds(200), .fraction_max = 0.3};

// Of what was opened with this deadline: it has come, or is so near that they have ended it.
bool IsUp(absl::Time now, absl::Time opened, absl::Time deadline) {
  return now - opened >= base::LeftForNextHop(deadline - opened, kHopsMargin);
}

v1::SequenceDelta WithoutEnd(v1::SequenceDelta delta) {
  delta.clear_end();
  return delta;
}

}  // namespace

// One sample on its way: the routes' view of a generation. Keeps the generation alive until its
// sequence has ended.
class Generation::Run final : public RouteSequence {
 public:
  Run(std::shared_ptr<Generation> generation, int64_t sample)
      : generation_(std::move(generation)), sample_(sample) {}
  std::optional<v1::RouteOpen> BuildOpen() override { return generation_->Reopen(sample_); }
  void OnEntered(uint64_t epoch) override { generation_->Enter(sample_, epoch); }
  void OnDelta(const v1::SequenceDelta& delta) override { generation_->Apply(sample_, delta); }
  int64_t TakeCredit() override { return generation_->TakeCredit(sample_); }

 private:
  const std::shared_ptr<Generation> generation_;
  const int64_t sample_;
};

Generation::Generation(std::shared_ptr<const RequestContext> context, Options options, Deps deps)
    : context_(std::move(context)),
      options_(options),
      deps_(std::move(deps)),
      started_(deps_.clock->Now()),
      window_(CreditWindow(context_->request)),
      ledger_grants_(options_.credit == Credit::kLedger),
      deadline_(options_.deadline) {
  const int64_t n = context_->request.n;
  ledgers_.reserve(n);
  for (int64_t i = 0; i < n; ++i) ledgers_.emplace_back(context_, i);
  routes_.assign(n, {.granted = window_});
}

Generation::Generation(const Generation& running, std::vector<SampleLedger> ended,
                       v1::FinishReason reason)
    : context_(running.context_),
      options_(running.options_),
      deps_(running.deps_),
      started_(running.started_),
      window_(running.window_),
      ledgers_(std::move(ended)),
      ledger_grants_(running.ledger_grants_),
      joining_(0),
      deadline_(running.deadline_),
      ended_count_(context_->request.n),
      completed_count_(running.completed_count_),
      time_is_up_(reason == v1::FINISH_REASON_ABORT) {}

void Generation::Start() {
  const int64_t n = context_->request.n;
  deps_.metrics->samples_open.Add(static_cast<double>(n));
  deps_.metrics->prompt_tokens.Increment(static_cast<double>(context_->request.prompt_ids.size()));
  base::MutexLock lock(&mutex_);
  RouteLocked(0, n);
  started_routes_ = true;
}

void Generation::RouteLocked(int64_t first, int64_t count) {
  std::vector<SequenceRoutes::Item> items;
  for (int64_t i = first; i < first + count; ++i) {
    items.push_back({std::make_shared<Run>(shared_from_this(), i), OpenLocked(i)});
  }
  // The routes do not call back from inside Open, so the handles are known before any result.
  uint64_t handle = deps_.routes->Open(std::move(items));
  for (int64_t i = first; i < first + count; ++i) routes_[i].handle = handle++;
}

bool Generation::Join(absl::Time deadline) {
  base::MutexLock lock(&mutex_);
  if (FinishedLocked() ? completed_count_ < context_->request.n : time_is_up_) return false;
  ++joining_;
  deadline_ = std::max(deadline_, deadline);
  orphaned_since_ = absl::InfiniteFuture();
  return true;
}

void Generation::Subscribe(std::shared_ptr<GenerationObserver> observer, absl::Time deadline) {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(&mutex_);
    --joining_;
    subscribers_.push_back({.observer = std::move(observer), .deadline = deadline});
    Subscriber& subscriber = subscribers_.back();
    subscriber.positions.resize(ledgers_.size());
    for (size_t i = 0; i < ledgers_.size(); ++i) Tell(ledgers_[i], i, &subscriber);
    ended = TakeFinishedLocked();
  }
  Tell(ended);
}

void Generation::Unsubscribe(const GenerationObserver* observer) {
  bool end = false;
  {
    base::MutexLock lock(&mutex_);
    std::erase_if(subscribers_,
                  [observer](const Subscriber& s) { return s.observer.get() == observer; });
    NoteOrphanedLocked();
    end = context_->request.request_id_minted && subscribers_.empty();
  }
  if (end) EndEarly(v1::FINISH_REASON_ABORT);
}

void Generation::NoteOrphanedLocked() {
  if (subscribers_.empty() && joining_ == 0) orphaned_since_ = deps_.clock->Now();
}

void Generation::EndFor(const GenerationObserver* observer, v1::FinishReason reason) {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(&mutex_);
    const auto found = std::find_if(subscribers_.begin(), subscribers_.end(),
                                    [&](const auto& s) { return s.observer.get() == observer; });
    if (found == subscribers_.end()) return;
    if (subscribers_.size() == 1 && joining_ == 0) {
      EndAllLocked(reason);
      ended = TakeFinishedLocked();
    } else {
      ended.push_back(CutLocked(found - subscribers_.begin(), reason));
    }
  }
  Tell(ended);
}

void Generation::EndLate(absl::Duration orphan_grace) {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(&mutex_);
    const absl::Time now = deps_.clock->Now();
    if (now > deadline_ || now - orphaned_since_ > orphan_grace) {
      EndAllLocked(v1::FINISH_REASON_ABORT);
      ended = TakeFinishedLocked();
    }
    for (size_t i = subscribers_.size(); i-- > 0;) {
      if (now > subscribers_[i].deadline) ended.push_back(CutLocked(i, v1::FINISH_REASON_ABORT));
    }
    if (!ended.empty()) NoteOrphanedLocked();
  }
  Tell(ended);
}

Generation::Ended Generation::CutLocked(size_t subscriber, v1::FinishReason reason) {
  Subscriber cut = std::move(subscribers_[subscriber]);
  subscribers_.erase(subscribers_.begin() + static_cast<std::ptrdiff_t>(subscriber));
  std::vector<SampleLedger> ledgers = ledgers_;
  for (size_t i = 0; i < ledgers.size(); ++i) {
    ledgers[i].End(reason);
    Tell(ledgers[i], i, &cut);
  }
  return {std::move(cut.observer),
          std::shared_ptr<const Generation>(new Generation(*this, std::move(ledgers), reason))};
}

void Generation::Grant(int64_t sample, int64_t tokens) {
  base::MutexLock lock(&mutex_);
  if (ledger_grants_) return;
  routes_[sample].granted += tokens;
  if (started_routes_ && !ledgers_[sample].ended()) {
    deps_.routes->AddCredit(routes_[sample].handle, tokens);
  }
}

void Generation::LetLedgerGrant() {
  base::MutexLock lock(&mutex_);
  ledger_grants_ = true;
  if (!started_routes_) return;
  for (int64_t i = 0; i < context_->request.n; ++i) {
    const int64_t tokens = RefillLocked(i);
    if (tokens > 0) deps_.routes->AddCredit(routes_[i].handle, tokens);
  }
}

int64_t Generation::TakeCredit(int64_t sample) {
  base::MutexLock lock(&mutex_);
  return ledger_grants_ ? RefillLocked(sample) : 0;
}

int64_t Generation::RefillLocked(int64_t sample) {
  const SampleLedger& ledger = ledgers_[sample];
  const int64_t left = routes_[sample].granted - ledger.token_count();
  if (ledger.ended() || left > window_ / 2) return 0;
  routes_[sample].granted += window_ - left;
  return window_ - left;
}

void Generation::EndEarly(v1::FinishReason reason) {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(&mutex_);
    EndAllLocked(reason);
    ended = TakeFinishedLocked();
  }
  Tell(ended);
}

void Generation::EndAllLocked(v1::FinishReason reason) {
  for (int64_t i = 0; i < context_->request.n; ++i) EndLocked(i, reason, absl::OkStatus());
}

std::optional<v1::RouteOpen> Generation::Reopen(int64_t sample) {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(&mutex_);
    if (ledgers_[sample].ended()) return std::nullopt;
    if (++routes_[sample].reopens <= options_.retry_budget) {
      ledgers_[sample].CountResumption();
      deps_.metrics->resubmissions.Increment();
      return OpenLocked(sample);
    }
    EndLocked(
        sample, v1::FINISH_REASON_ERROR,
        absl::UnavailableError(absl::StrCat("the sample lost its router ", routes_[sample].reopens,
                                            " times, at most ", options_.retry_budget)));
    ended = TakeFinishedLocked();
  }
  Tell(ended);
  return std::nullopt;
}

v1::RouteOpen Generation::OpenLocked(int64_t sample) {
  const SampleLedger& ledger = ledgers_[sample];
  Route& route = routes_[sample];
  route.opened = deps_.clock->Now();
  route.deadline = deadline_;
  v1::RouteOpen open;
  *open.mutable_sequence() = ledger.Spec();
  open.mutable_sequence()->set_entry_epoch(route.entry_epoch);
  open.set_deadline_seconds(std::max(0.001, absl::ToDoubleSeconds(route.deadline - route.opened)));
  open.set_credit_tokens(route.granted - ledger.token_count());
  open.set_retry_budget(options_.retry_budget - route.reopens);
  return open;
}

void Generation::Enter(int64_t sample, uint64_t epoch) {
  base::MutexLock lock(&mutex_);
  routes_[sample].entry_epoch = epoch;
}

bool Generation::GoesOnLocked(int64_t sample, const v1::SequenceDelta& delta) const {
  const Route& route = routes_[sample];
  return delta.end().reason() == v1::FINISH_REASON_ABORT && route.deadline < deadline_ &&
         IsUp(deps_.clock->Now(), route.opened, route.deadline);
}

void Generation::Apply(int64_t sample, const v1::SequenceDelta& delta) {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(&mutex_);
    SampleLedger& ledger = ledgers_[sample];
    if (ledger.ended()) return;
    const int64_t before = ledger.token_count();
    const bool goes_on = GoesOnLocked(sample, delta);
    const absl::Status status = ledger.Apply(goes_on ? WithoutEnd(delta) : delta);
    deps_.metrics->generated_tokens.Increment(static_cast<double>(ledger.token_count() - before));
    if (before == 0 && ledger.token_count() > 0) {
      deps_.metrics->first_token_seconds.Observe(deps_.clock->Now() - started_);
    }
    if (!status.ok()) {
      if (absl::IsDataLoss(status)) deps_.metrics->bit_mismatches.Increment();
      deps_.logger.Error("bad_delta", {{"sample", ledger.index()}, {"error", status}});
      EndLocked(sample, v1::FINISH_REASON_ERROR, status);
    } else {
      if (ledger.ended()) CountEndLocked(sample);
      if (goes_on) {
        ledger.CountResumption();
        RouteLocked(sample, 1);
      }
      TellAllLocked(sample);
    }
    ended = TakeFinishedLocked();
  }
  Tell(ended);
}

void Generation::EndLocked(int64_t sample, v1::FinishReason reason, const absl::Status& error) {
  SampleLedger& ledger = ledgers_[sample];
  if (ledger.ended()) return;
  ledger.End(reason, error);
  if (started_routes_) deps_.routes->Cancel(routes_[sample].handle);
  CountEndLocked(sample);
  TellAllLocked(sample);
}

void Generation::CountEndLocked(int64_t sample) {
  ++ended_count_;
  const v1::FinishReason reason = ledgers_[sample].sample().finish_reason();
  if (reason == v1::FINISH_REASON_STOP || reason == v1::FINISH_REASON_LENGTH) ++completed_count_;
  // An abort may be another one's doing; the time tells.
  if (reason == v1::FINISH_REASON_ABORT) {
    time_is_up_ |= IsUp(deps_.clock->Now(), routes_[sample].opened, deadline_);
  }
  deps_.metrics->samples[reason].Increment();
  deps_.metrics->samples_open.Add(-1);
  if (reason == v1::FINISH_REASON_ERROR) {
    const v1::ErrorDetail& error = ledgers_[sample].sample().error();
    deps_.logger.ForRequest(context_->trace_id, context_->request.request_id)
        .Warning("sample_failed",
                 {{"sample", sample}, {"code", error.code()}, {"error", error.message()}});
  }
}

void Generation::TellAllLocked(int64_t sample) {
  for (Subscriber& subscriber : subscribers_) Tell(ledgers_[sample], sample, &subscriber);
}

bool Generation::FinishedLocked() const { return ended_count_ == context_->request.n; }

std::vector<Generation::Ended> Generation::TakeFinishedLocked() {
  std::vector<Ended> ended;
  if (!FinishedLocked()) return ended;
  for (Subscriber& subscriber : std::exchange(subscribers_, {})) {
    ended.push_back({std::move(subscriber.observer), shared_from_this()});
  }
  return ended;
}

void Generation::Tell(const std::vector<Ended>& ended) {
  for (const Ended& one : ended) one.observer->OnFinished(one.answer);
}

void Generation::Tell(const SampleLedger& ledger, size_t sample, Subscriber* subscriber) {
  if (!subscriber->observer->wants_deltas()) return;
  Subscriber::Position& told = subscriber->positions[sample];
  const Subscriber::Position now = {ledger.token_count(), ledger.prompt_position_count(),
                                    ledger.text().size(), ledger.ended()};
  if (now.tokens == told.tokens && now.prompt == told.prompt && now.ended == told.ended) return;
  subscriber->observer->OnDelta(ledger.Since(told.tokens, told.prompt, told.text_bytes));
  told = now;
}

bool Generation::finished() const {
  base::MutexLock lock(&mutex_);
  return FinishedLocked();
}

bool Generation::TimeIsUp() const {
  base::MutexLock lock(&mutex_);
  return time_is_up_;
}

absl::Status Generation::Outcome() const {
  base::MutexLock lock(&mutex_);
  return ledgers_.size() == 1 ? ledgers_.front().error() : absl::OkStatus();
}

int64_t Generation::completed_sample_count() const {
  base::MutexLock lock(&mutex_);
  return completed_count_;
}

int64_t Generation::memory_bytes() const {
  const ValidRequest& request = context_->request;
  size_t bytes = sizeof(Generation) + sizeof(RequestContext) + kUncountedBytes;
  bytes += request.effective.SpaceUsedLong() + kNamesOfRequest * request.request_id.capacity();
  bytes += (request.prompt_ids.capacity() + request.generated_ids.capacity()) * sizeof(int32_t);
  base::MutexLock lock(&mutex_);
  for (const SampleLedger& ledger : ledgers_) {
    bytes += sizeof(SampleLedger) + kUncountedSampleBytes + ledger.sample().SpaceUsedLong();
  }
  return static_cast<int64_t>(bytes);
}

int64_t Generation::EndStranded(v1::FinishReason reason) {
  std::vector<Ended> ended;
  int64_t count = 0;
  {
    base::MutexLock lock(&mutex_);
    for (int64_t i = 0; started_routes_ && i < context_->request.n; ++i) {
      if (ledgers_[i].ended() || !deps_.routes->IsStranded(routes_[i].handle)) continue;
      EndLocked(i, reason, absl::OkStatus());
      ++count;
    }
    ended = TakeFinishedLocked();
  }
  Tell(ended);
  return count;
}

v1::GenerateResponse Generation::Header() const {
  const ValidRequest& request = context_->request;
  v1::GenerateResponse header;
  header.set_request_id(request.request_id);
  header.set_prompt_ids(std::string(reinterpret_cast<const char*>(request.prompt_ids.data()),
                                    request.prompt_ids.size() * sizeof(int32_t)));
  *header.mutable_effective() = request.effective;
  *header.mutable_fingerprint() = context_->limits->fingerprint;
  header.set_mode(context_->limits->fingerprint.mode());
  return header;
}

AnswerBytes Generation::MeasureAnswer() const {
  const ValidRequest& request = context_->request;
  AnswerBytes bytes;
  bytes.whole =
      kFramingBytes + request.request_id.size() + context_->limits->fingerprint.ByteSizeLong();
  if (!request.score_only) {
    bytes.whole += request.prompt_ids.size() * sizeof(int32_t) + request.effective.ByteSizeLong();
  }
  base::MutexLock lock(&mutex_);
  for (const SampleLedger& ledger : ledgers_) {
    bytes.samples.push_back(ledger.sample().ByteSizeLong());
    bytes.whole += bytes.samples.back() + kFramingBytesOfSample;
  }
  return bytes;
}

v1::GenerateResponse Generation::Response() const {
  v1::GenerateResponse response = Header();
  base::MutexLock lock(&mutex_);
  for (const SampleLedger& ledger : ledgers_) *response.add_samples() = ledger.sample();
  return response;
}

}  // namespace lockstep::gateway
