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
      orphaned_since_(started_) {
  const int64_t n = context_->request.n;
  ledgers_.reserve(n);
  for (int64_t i = 0; i < n; ++i) ledgers_.emplace_back(context_, i);
  granted_.assign(n, window_);
  entry_epochs_.assign(n, 0);
  reopens_.assign(n, 0);
}

void Generation::Start() {
  const int64_t n = context_->request.n;
  deps_.metrics->samples_open.Add(static_cast<double>(n));
  deps_.metrics->prompt_tokens.Increment(static_cast<double>(context_->request.prompt_ids.size()));
  // The routes do not call back from inside Open, so the handles are known before any result.
  base::MutexLock lock(&mutex_);
  std::vector<SequenceRoutes::Item> items;
  for (int64_t i = 0; i < n; ++i) {
    items.push_back({std::make_shared<Run>(shared_from_this(), i), OpenLocked(i)});
  }
  first_handle_ = deps_.routes->Open(std::move(items));
  started_routes_ = true;
}

void Generation::Subscribe(std::shared_ptr<GenerationObserver> observer) {
  std::vector<Subscriber> finished;
  {
    base::MutexLock lock(&mutex_);
    orphaned_since_ = absl::InfiniteFuture();
    subscribers_.push_back({std::move(observer), {}});
    Subscriber& subscriber = subscribers_.back();
    subscriber.positions.resize(ledgers_.size());
    if (subscriber.observer->wants_deltas()) {
      for (size_t i = 0; i < ledgers_.size(); ++i) {
        TellLocked(static_cast<int64_t>(i), &subscriber);
      }
    }
    finished = TakeFinishedLocked();
  }
  for (const Subscriber& subscriber : finished) subscriber.observer->OnFinished();
}

void Generation::Unsubscribe(const GenerationObserver* observer) {
  bool end = false;
  {
    base::MutexLock lock(&mutex_);
    std::erase_if(subscribers_,
                  [observer](const Subscriber& s) { return s.observer.get() == observer; });
    if (subscribers_.empty()) {
      orphaned_since_ = deps_.clock->Now();
      end = context_->request.request_id_minted;
    }
  }
  if (end) EndEarly(v1::FINISH_REASON_ABORT);
}

absl::Time Generation::orphaned_since() const {
  base::MutexLock lock(&mutex_);
  return orphaned_since_;
}

void Generation::Grant(int64_t sample, int64_t tokens) {
  base::MutexLock lock(&mutex_);
  if (ledger_grants_) return;
  granted_[sample] += tokens;
  if (started_routes_ && !ledgers_[sample].ended()) {
    deps_.routes->AddCredit(first_handle_ + sample, tokens);
  }
}

void Generation::LetLedgerGrant() {
  base::MutexLock lock(&mutex_);
  ledger_grants_ = true;
  if (!started_routes_) return;
  for (int64_t i = 0; i < context_->request.n; ++i) {
    const int64_t tokens = RefillLocked(i);
    if (tokens > 0) deps_.routes->AddCredit(first_handle_ + i, tokens);
  }
}

int64_t Generation::TakeCredit(int64_t sample) {
  base::MutexLock lock(&mutex_);
  return ledger_grants_ ? RefillLocked(sample) : 0;
}

int64_t Generation::RefillLocked(int64_t sample) {
  const SampleLedger& ledger = ledgers_[sample];
  const int64_t left = granted_[sample] - ledger.token_count();
  if (ledger.ended() || left > window_ / 2) return 0;
  granted_[sample] += window_ - left;
  return window_ - left;
}

void Generation::EndEarly(v1::FinishReason reason) {
  std::vector<Subscriber> finished;
  {
    base::MutexLock lock(&mutex_);
    for (int64_t i = 0; i < context_->request.n; ++i) EndLocked(i, reason, absl::OkStatus());
    finished = TakeFinishedLocked();
  }
  for (const Subscriber& subscriber : finished) subscriber.observer->OnFinished();
}

std::optional<v1::RouteOpen> Generation::Reopen(int64_t sample) {
  std::vector<Subscriber> finished;
  {
    base::MutexLock lock(&mutex_);
    if (ledgers_[sample].ended()) return std::nullopt;
    if (++reopens_[sample] <= options_.retry_budget) {
      ledgers_[sample].CountResumption();
      deps_.metrics->resubmissions.Increment();
      return OpenLocked(sample);
    }
    EndLocked(sample, v1::FINISH_REASON_ERROR,
              absl::UnavailableError(absl::StrCat("the sample lost its router ", reopens_[sample],
                                                  " times, at most ", options_.retry_budget)));
    finished = TakeFinishedLocked();
  }
  for (const Subscriber& subscriber : finished) subscriber.observer->OnFinished();
  return std::nullopt;
}

v1::RouteOpen Generation::OpenLocked(int64_t sample) {
  const SampleLedger& ledger = ledgers_[sample];
  v1::RouteOpen open;
  *open.mutable_sequence() = ledger.Spec();
  open.mutable_sequence()->set_entry_epoch(entry_epochs_[sample]);
  open.set_deadline_seconds(
      std::max(0.001, absl::ToDoubleSeconds(options_.deadline - deps_.clock->Now())));
  open.set_credit_tokens(granted_[sample] - ledger.token_count());
  open.set_retry_budget(options_.retry_budget - reopens_[sample]);
  return open;
}

void Generation::Enter(int64_t sample, uint64_t epoch) {
  base::MutexLock lock(&mutex_);
  entry_epochs_[sample] = epoch;
}

void Generation::Apply(int64_t sample, const v1::SequenceDelta& delta) {
  std::vector<Subscriber> finished;
  {
    base::MutexLock lock(&mutex_);
    SampleLedger& ledger = ledgers_[sample];
    if (ledger.ended()) return;
    const int64_t before = ledger.token_count();
    const absl::Status status = ledger.Apply(delta);
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
      TellAllLocked(sample);
    }
    finished = TakeFinishedLocked();
  }
  for (const Subscriber& subscriber : finished) subscriber.observer->OnFinished();
}

void Generation::EndLocked(int64_t sample, v1::FinishReason reason, const absl::Status& error) {
  SampleLedger& ledger = ledgers_[sample];
  if (ledger.ended()) return;
  ledger.End(reason, error);
  if (started_routes_) deps_.routes->Cancel(first_handle_ + sample);
  CountEndLocked(sample);
  TellAllLocked(sample);
}

void Generation::CountEndLocked(int64_t sample) {
  ++ended_count_;
  const v1::FinishReason reason = ledgers_[sample].sample().finish_reason();
  if (reason == v1::FINISH_REASON_STOP || reason == v1::FINISH_REASON_LENGTH) ++completed_count_;
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
  for (Subscriber& subscriber : subscribers_) {
    if (subscriber.observer->wants_deltas()) TellLocked(sample, &subscriber);
  }
}

std::vector<Generation::Subscriber> Generation::TakeFinishedLocked() {
  if (ended_count_ < context_->request.n) return {};
  return std::exchange(subscribers_, {});
}

void Generation::TellLocked(int64_t sample, Subscriber* subscriber) {
  const SampleLedger& ledger = ledgers_[sample];
  Subscriber::Position& told = subscriber->positions[sample];
  const Subscriber::Position now = {ledger.token_count(), ledger.prompt_position_count(),
                                    ledger.text().size(), ledger.ended()};
  if (now.tokens == told.tokens && now.prompt == told.prompt && now.ended == told.ended) return;
  subscriber->observer->OnDelta(ledger.Since(told.tokens, told.prompt, told.text_bytes));
  told = now;
}

bool Generation::finished() const {
  base::MutexLock lock(&mutex_);
  return ended_count_ == context_->request.n;
}

bool Generation::TimeIsUp() const {
  const absl::Duration whole = options_.deadline - started_;
  return deps_.clock->Now() - started_ >= base::LeftForNextHop(whole, kHopsMargin);
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

void Generation::EndSampleEarly(int64_t sample, v1::FinishReason reason) {
  std::vector<Subscriber> finished;
  {
    base::MutexLock lock(&mutex_);
    EndLocked(sample, reason, absl::OkStatus());
    finished = TakeFinishedLocked();
  }
  for (const Subscriber& subscriber : finished) subscriber.observer->OnFinished();
}

int64_t Generation::EndStranded(v1::FinishReason reason) {
  std::vector<Subscriber> finished;
  int64_t count = 0;
  {
    base::MutexLock lock(&mutex_);
    for (int64_t i = 0; started_routes_ && i < context_->request.n; ++i) {
      if (ledgers_[i].ended() || !deps_.routes->IsStranded(first_handle_ + i)) continue;
      EndLocked(i, reason, absl::OkStatus());
      ++count;
    }
    finished = TakeFinishedLocked();
  }
  for (const Subscriber& subscriber : finished) subscriber.observer->OnFinished();
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
