#include "services/gateway/generate_many_handler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_conversion.h"

namespace lockstep::gateway {
namespace {

constexpr int64_t kSlotsMax = 65536;
// Answers are cut between samples when they grow beyond this.
constexpr size_t kPartBytes = size_t{1} << 20;

// Why the n-th message, from 0, is no prompt. Its client knows it by its place alone.
absl::Status FaultOf(const rpc::Received<v1::GenerateManyRequest>& received, int64_t n) {
  absl::Status fault;
  if (!received.parses) {
    fault = rpc::DoesNotParse<v1::GenerateManyRequest>();
  } else if (!received.message.has_generate()) {
    fault = absl::InvalidArgumentError("kind: not set");
  }
  if (fault.ok()) return fault;
  return absl::Status(fault.code(), absl::StrCat("messages[", n, "]: ", fault.message()));
}

absl::Status CheckCount(absl::string_view field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is less than 0"));
}

}  // namespace

void ManyStreams::Add(std::weak_ptr<GenerateManyHandler> handler) {
  base::MutexLock lock(&mutex_);
  std::erase_if(handlers_, [](const auto& weak) { return weak.expired(); });
  handlers_.push_back(std::move(handler));
}

void ManyStreams::Tick(absl::Time now, bool draining) {
  std::vector<std::shared_ptr<GenerateManyHandler>> live;
  {
    base::MutexLock lock(&mutex_);
    for (const auto& weak : handlers_) {
      if (auto handler = weak.lock()) live.push_back(std::move(handler));
    }
  }
  for (const auto& handler : live) handler->Tick(now, draining);
}

class GenerateManyHandler::Observer final : public GenerationObserver {
 public:
  Observer(std::shared_ptr<GenerateManyHandler> handler, std::string request_id, bool wants_samples)
      : handler_(std::move(handler)),
        request_id_(std::move(request_id)),
        wants_samples_(wants_samples) {}
  void OnDelta(v1::GenerateDelta delta) override {
    if (delta.has_finished()) handler_->SampleEnded(request_id_, delta.finished());
  }
  void OnFinished(const std::shared_ptr<const Generation>& ended) override {
    handler_->ItemFinished(request_id_, ended);
  }
  bool wants_deltas() const override { return wants_samples_; }

 private:
  const std::shared_ptr<GenerateManyHandler> handler_;
  const std::string request_id_;
  const bool wants_samples_;
};

void GenerateManyHandler::Start() {
  streams_->Add(rpc::SharedFrom(this));
  RequestRead();
}

void GenerateManyHandler::OnMessage(rpc::Received<v1::GenerateManyRequest>& received) {
  v1::GenerateManyRequest& request = received.message;
  if (received.parses && request.has_options()) {
    if (absl::Status status = TakeOptions(request.options()); !status.ok()) {
      return Abort(std::move(status));
    }
  } else {
    {
      base::MutexLock lock(&items_mutex_);
      Pending pending{.fault = FaultOf(received, messages_),
                      .arrival = starter_->meter().Arrive(scope().deadline)};
      // What is sent later may start earlier, so the order is given here.
      if (pending.fault.ok()) pending.place = order_.Add();
      pending.request = std::move(request);
      pending_.push_back(std::move(pending));
    }
    AskForSlots();
  }
  {
    base::MutexLock lock(&items_mutex_);
    ++messages_;
  }
  Proceed();
}

void GenerateManyHandler::AskForSlots() {
  while (true) {
    {
      base::MutexLock lock(&items_mutex_);
      if (asked_ || pending_.empty()) return;
      asked_ = true;
    }
    if (!pool_->Ask(rpc::SharedFrom(this))) return;
    StartPending();
  }
}

void GenerateManyHandler::OnSlot() {
  StartPending();
  AskForSlots();
  ItemStarted();
}

void GenerateManyHandler::ItemStarted() {
  bool closed;
  {
    base::MutexLock lock(&items_mutex_);
    closed = closed_.has_value();
  }
  // It may have closed while the item was started.
  if (closed) return LeaveItems(absl::CancelledError());
  Proceed();
}

void GenerateManyHandler::StartPending() {
  Pending next;
  absl::Status refusal;
  bool closed;
  {
    base::MutexLock lock(&items_mutex_);
    asked_ = false;
    closed = pending_.empty();
    if (!closed) {
      next = std::move(pending_.front());
      pending_.pop_front();
      ++slots_used_;
      if (next.fault.ok()) refusal = TakeIdLocked(next.request);
    }
  }
  // The stream closed while the wish was on its way, perhaps after it had left the pool.
  if (closed) return pool_->Leave(this);
  if (!next.fault.ok()) return SendError("", next.fault, next.arrival);
  if (!refusal.ok()) return Refuse(next, refusal);
  if (LongWorkThread::IsShortText(next.request.generate().prompt_text().size()))
    return StartItem(next);
  long_work_->Post([self = rpc::SharedFrom(this), item = std::move(next)] {
    self->StartItem(item);
    self->ItemStarted();
  });
}

absl::Status GenerateManyHandler::TakeIdLocked(const v1::GenerateManyRequest& request) {
  const std::string& request_id = request.generate().request_id();
  if (!(request.timeout_seconds() >= 0)) {  // Also what is not a number.
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_seconds: ", request.timeout_seconds(), " is outside [0, infinity]"));
  }
  if (request_id.empty()) {
    return absl::InvalidArgumentError("generate.request_id: required on a stream, but empty");
  }
  if (items_.try_emplace(request_id).second) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("generate.request_id: \"", request_id, "\" is in work on this stream already"));
}

void GenerateManyHandler::Refuse(const Pending& item, const absl::Status& why) {
  {
    base::MutexLock lock(&items_mutex_);
    order_.Refuse(item.place);
  }
  SendError(item.request.generate().request_id(), why, item.arrival);
}

absl::Status GenerateManyHandler::TakeOptions(const v1::GenerateManyOptions& options) {
  base::MutexLock lock(&items_mutex_);
  if (messages_ > 0) {
    return absl::InvalidArgumentError("options: only in the first message of a stream");
  }
  if (options.slots_max() < 0 || options.slots_max() > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("options.slots_max: ", options.slots_max(),
                                                   " is outside [1, ", kSlotsMax, "]"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckCount("options.samples_per_group", options.samples_per_group()));
  LOCKSTEP_RETURN_IF_ERROR(CheckCount("options.groups_total", options.groups_total()));
  if (!v1::SelectOrder_IsValid(options.select())) {
    return absl::InvalidArgumentError(absl::StrCat("options.select: ", options.select(),
                                                   " is outside [", v1::SelectOrder_MIN, ", ",
                                                   v1::SelectOrder_MAX, "]"));
  }
  if (options.slots_max() > 0) limits_.slots_max = options.slots_max();
  options_ = options;
  return absl::OkStatus();
}

void GenerateManyHandler::StartItem(const Pending& pending) {
  const v1::GenerateManyRequest& request = pending.request;
  const std::string& request_id = request.generate().request_id();
  rpc::CallScope item_scope = starter_->ScopeToRun(scope());
  if (request.timeout_seconds() > 0) {
    item_scope.deadline = std::min(item_scope.deadline,
                                   pending.arrival.at + absl::Seconds(request.timeout_seconds()));
  }
  auto started = starter_->Generate(request.generate(), item_scope, AnswerForm::kBySample);
  if (!started.ok()) {
    {
      base::MutexLock lock(&items_mutex_);
      items_.erase(request_id);
    }
    return Refuse(pending, started.status());
  }
  const std::shared_ptr<Generation>& generation = started->generation;
  std::shared_ptr<Observer> observer;
  {
    base::MutexLock lock(&items_mutex_);
    const bool wants_samples = options_.samples_per_group() > 0;
    observer = std::make_shared<Observer>(rpc::SharedFrom(this), request_id, wants_samples);
    Item& item = items_[request_id];
    item.generation = generation;
    item.observer = observer;
    item.arrival = pending.arrival;
    item.place = pending.place;
    item.done.assign(generation->context().request.n, false);
  }
  generation->Subscribe(std::move(observer), started->deadline);
}

bool GenerateManyHandler::EnoughLocked(const Item& item) const {
  const int64_t wanted = options_.samples_per_group();
  if (wanted == 0) return false;
  if (options_.select() != v1::SELECT_ORDER_LOWEST_INDEX) return item.samples_done >= wanted;
  const int64_t n = std::min<int64_t>(wanted, static_cast<int64_t>(item.done.size()));
  return std::all_of(item.done.begin(), item.done.begin() + n, [](bool done) { return done; });
}

bool GenerateManyHandler::EnoughGroupsLocked() const {
  // Which groups are kept must not depend on which of them happen to be quick.
  const int64_t finished = options_.select() == v1::SELECT_ORDER_LOWEST_INDEX
                               ? order_.finished_in_order_count()
                               : order_.finished_count();
  return options_.groups_total() > 0 && finished >= options_.groups_total();
}

void GenerateManyHandler::SampleEnded(const std::string& request_id, const v1::Sample& sample) {
  base::MutexLock lock(&items_mutex_);
  const auto found = items_.find(request_id);
  if (found == items_.end()) return;
  Item& item = found->second;
  if (sample.finish_reason() == v1::FINISH_REASON_PARTIAL) return;
  ++item.samples_done;
  item.done[sample.index() - item.generation->context().request.first_sample_index] = true;
  item.enough = EnoughLocked(item);
}

void GenerateManyHandler::ItemFinished(const std::string& request_id,
                                       const std::shared_ptr<const Generation>& ended) {
  RequestMeter::Arrival arrival;
  {
    base::MutexLock lock(&items_mutex_);
    const auto found = items_.find(request_id);
    if (found == items_.end()) return;
    arrival = found->second.arrival;
    order_.Finish(found->second.place);
    items_.erase(found);
  }
  starter_->Settle(*ended);
  AnswerBytes bytes = ended->MeasureAnswer();
  const bool is_short = LongWorkThread::IsShortAnswer(bytes.whole);
  long_work_->RunOrPost(is_short, [self = rpc::SharedFrom(this), ended, bytes = std::move(bytes),
                                   arrival] { self->SendAnswer(*ended, bytes, arrival); });
}

void GenerateManyHandler::SendAnswer(const Generation& generation, const AnswerBytes& bytes,
                                     const RequestMeter::Arrival& arrival) {
  const RequestContext& context = generation.context();
  const std::string& request_id = context.request.request_id;
  const absl::Status fits = CheckAnswerFits(bytes, AnswerForm::kBySample, *context.limits);
  if (!fits.ok()) return SendError(request_id, fits, arrival);
  v1::GenerateResponse response = generation.Response();
  std::vector<v1::Sample> samples(std::make_move_iterator(response.mutable_samples()->begin()),
                                  std::make_move_iterator(response.mutable_samples()->end()));
  response.clear_samples();
  v1::GenerateManyResponse part;
  part.set_request_id(request_id);
  *part.mutable_response() = std::move(response);
  size_t part_bytes = part.ByteSizeLong();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (part.response().samples_size() > 0 && part_bytes + bytes.samples[i] > kPartBytes) {
      part.set_more(true);
      Send(std::exchange(part, {}), /*last_of=*/std::nullopt);
      part.set_request_id(request_id);
      part_bytes = 0;
    }
    *part.mutable_response()->add_samples() = std::move(samples[i]);
    part_bytes += bytes.samples[i];
  }
  // A failed sample is in the answer; where it is the only one, the request counts as failed.
  Send(std::move(part), starter_->meter().EndOf(arrival, generation.Outcome()));
}

void GenerateManyHandler::SendError(const std::string& request_id, const absl::Status& status,
                                    const RequestMeter::Arrival& arrival) {
  v1::GenerateManyResponse message;
  message.set_request_id(request_id);
  *message.mutable_error() = rpc::ToErrorDetail(status);
  Send(std::move(message), starter_->meter().EndOf(arrival, status));
}

void GenerateManyHandler::Send(v1::GenerateManyResponse message,
                               std::optional<RequestEnd> last_of) {
  {
    base::MutexLock lock(&items_mutex_);
    if (!closed_.has_value()) {
      sent_.push_back({last_of, clock_->Now()});
      (void)Write(std::move(message));
    } else if (last_of.has_value()) {
      starter_->meter().Count({closed_->code(), last_of->took});
    }
  }
  // The work is done; that nobody reads the answer is this stream's own affair.
  if (last_of.has_value()) pool_->Give(this);
}

void GenerateManyHandler::OnWritten() {
  {
    base::MutexLock lock(&items_mutex_);
    if (const auto& ended = sent_.front().last_of) {
      --slots_used_;
      starter_->meter().Count(*ended);
    }
    sent_.pop_front();
    // The transport takes messages in order, so the next one waits from now on.
    if (!sent_.empty()) sent_.front().since = clock_->Now();
  }
  Proceed();
}

void GenerateManyHandler::Proceed() {
  bool finish = false;
  absl::Status status;
  {
    base::MutexLock lock(&items_mutex_);
    const bool enough_groups = EnoughGroupsLocked();
    const bool done = half_closed_ || enough_groups;
    // A prompt that was read is answered, unless nothing more is wanted: then it ran no more than
    // one that was not read.
    const bool waits = !pending_.empty();
    finish = (done || draining_) && slots_used_ == 0 && (!waits || enough_groups);
    if (!done && draining_) status = absl::UnavailableError("this gateway is draining");
    if (!done && !draining_ && !waits && slots_used_ < limits_.slots_max) RequestRead();
  }
  if (finish) Finish(std::move(status));
}

void GenerateManyHandler::OnHalfClose() {
  {
    base::MutexLock lock(&items_mutex_);
    half_closed_ = true;
  }
  Proceed();
}

void GenerateManyHandler::OnClosed(const absl::Status& status) {
  const RequestMeter& meter = starter_->meter();
  {
    base::MutexLock lock(&items_mutex_);
    closed_ = status;
    // Answers that the client did not take. A stream that ends well leaves none.
    for (const Sent& sent : sent_) {
      if (sent.last_of.has_value()) meter.Count({status.code(), sent.last_of->took});
    }
    if (!status.ok()) {
      for (const Pending& pending : pending_) meter.Count(pending.arrival, status);
    }
    pending_.clear();
  }
  pool_->Leave(this);
  // A message may have been on its way while the client was found to be gone.
  LeaveItems(status);
}

void GenerateManyHandler::LeaveItems(const absl::Status& status) {
  absl::flat_hash_map<std::string, Item> items;
  {
    base::MutexLock lock(&items_mutex_);
    items.swap(items_);
  }
  for (auto& [id, item] : items) {
    if (item.generation == nullptr) continue;  // It is being started, and left after that.
    item.generation->Unsubscribe(item.observer.get());
    starter_->meter().Count(item.arrival, status);
  }
}

void GenerateManyHandler::Tick(absl::Time now, bool draining) {
  std::vector<std::pair<std::shared_ptr<Generation>, std::shared_ptr<Observer>>> ending;
  bool idle = false;
  {
    base::MutexLock lock(&items_mutex_);
    const bool enough_groups = EnoughGroupsLocked();
    for (auto& [id, item] : items_) {
      if ((item.enough || enough_groups) && item.generation != nullptr) {
        ending.emplace_back(item.generation, item.observer);
      }
    }
    draining_ = draining;
    idle = !sent_.empty() && now - sent_.front().since > limits_.idle_timeout;
  }
  for (const auto& [generation, observer] : ending) {
    generation->EndFor(observer.get(), v1::FINISH_REASON_PARTIAL);
  }
  if (draining) Proceed();
  if (idle) {
    const absl::Status unread =
        absl::DeadlineExceededError("an answer was not read within stream_idle_timeout");
    LeaveItems(unread);
    Abort(unread);
  }
}

}  // namespace lockstep::gateway
