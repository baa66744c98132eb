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

// What of the stream's options may end a group early; empty when nothing does. Such a group is not
// shared with a caller who wants the whole answer.
std::string SelectionOf(v1::GenerateManyOptions options) {
  if (options.samples_per_group() == 0 && options.groups_total() == 0) return {};
  options.clear_slots_max();
  return BodyDigest(options);
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
  void OnFinished() override { handler_->ItemFinished(request_id_); }
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

void GenerateManyHandler::OnMessage(v1::GenerateManyRequest& request) {
  if (request.has_options()) {
    if (absl::Status status = TakeOptions(request.options()); !status.ok()) {
      return Abort(std::move(status));
    }
  } else {
    {
      base::MutexLock lock(&items_mutex_);
      pending_.push_back(std::move(request));
    }
    AskForSlots();
  }
  {
    base::MutexLock lock(&items_mutex_);
    any_message_ = true;
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
    closed = closed_;
  }
  // It may have closed while the item was started.
  if (closed) return LeaveItems();
  Proceed();
}

void GenerateManyHandler::StartPending() {
  v1::GenerateManyRequest request;
  bool closed;
  {
    base::MutexLock lock(&items_mutex_);
    asked_ = false;
    closed = pending_.empty();
    if (!closed) {
      request = std::move(pending_.front());
      pending_.pop_front();
      ++slots_used_;
    }
  }
  // The stream closed while the wish was on its way, perhaps after it had left the pool.
  if (closed) return pool_->Leave(this);
  if (!request.has_generate()) {
    return SendError("", absl::InvalidArgumentError("kind: not set"));
  }
  if (LongWorkThread::IsShortText(request.generate().prompt_text().size()))
    return StartItem(request);
  long_work_->Post([self = rpc::SharedFrom(this), request = std::move(request)] {
    self->StartItem(request);
    self->ItemStarted();
  });
}

absl::Status GenerateManyHandler::TakeOptions(const v1::GenerateManyOptions& options) {
  base::MutexLock lock(&items_mutex_);
  if (any_message_) {
    return absl::InvalidArgumentError("options: only in the first message of a stream");
  }
  if (options.slots_max() < 0 || options.slots_max() > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("options.slots_max: ", options.slots_max(),
                                                   " is outside [1, ", kSlotsMax, "]"));
  }
  if (options.samples_per_group() < 0 || options.groups_total() < 0) {
    return absl::InvalidArgumentError("options: samples_per_group and groups_total must be >= 0");
  }
  if (!v1::SelectOrder_IsValid(options.select())) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.select: ", options.select(), " is not known"));
  }
  if (options.slots_max() > 0) limits_.slots_max = options.slots_max();
  options_ = options;
  return absl::OkStatus();
}

void GenerateManyHandler::StartItem(const v1::GenerateManyRequest& request) {
  const std::string& request_id = request.generate().request_id();
  if (!(request.timeout_seconds() >= 0)) {  // Also what is not a number.
    return SendError(request_id, absl::InvalidArgumentError(
                                     absl::StrCat("timeout_seconds: ", request.timeout_seconds(),
                                                  " is outside [0, infinity]")));
  }
  bool wants_samples = false;
  bool is_new = false;
  std::string selection;
  {
    base::MutexLock lock(&items_mutex_);
    wants_samples = options_.samples_per_group() > 0;
    selection = SelectionOf(options_);
    is_new = !request_id.empty() && items_.try_emplace(request_id).second;
  }
  if (!is_new) {
    return SendError(request_id, absl::InvalidArgumentError(absl::StrCat(
                                     "generate.request_id: \"", request_id,
                                     "\" is empty or in work on this stream already")));
  }
  rpc::CallScope item_scope = starter_->ScopeToRun(scope());
  if (request.timeout_seconds() > 0) {
    item_scope.deadline =
        std::min(item_scope.deadline, clock_->Now() + absl::Seconds(request.timeout_seconds()));
  }
  auto generation =
      starter_->Generate(request.generate(), item_scope, Generation::Credit::kLedger, selection);
  if (!generation.ok()) {
    {
      base::MutexLock lock(&items_mutex_);
      items_.erase(request_id);
    }
    return SendError(request_id, generation.status());
  }
  auto observer = std::make_shared<Observer>(rpc::SharedFrom(this), request_id, wants_samples);
  {
    base::MutexLock lock(&items_mutex_);
    Item& item = items_[request_id];
    item.generation = *generation;
    item.observer = observer.get();
    item.order = groups_accepted_++;
    item.done.assign((*generation)->context().request.n, false);
  }
  (*generation)->Subscribe(std::move(observer));
}

bool GenerateManyHandler::EnoughLocked(const Item& item) const {
  const int64_t wanted = options_.samples_per_group();
  if (wanted == 0) return false;
  if (options_.select() != v1::SELECT_ORDER_LOWEST_INDEX) return item.samples_done >= wanted;
  const int64_t n = std::min<int64_t>(wanted, static_cast<int64_t>(item.done.size()));
  return std::all_of(item.done.begin(), item.done.begin() + n, [](bool done) { return done; });
}

bool GenerateManyHandler::EnoughGroupsLocked() const {
  return options_.groups_total() > 0 && groups_finished_ >= options_.groups_total();
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

void GenerateManyHandler::ItemFinished(const std::string& request_id) {
  std::shared_ptr<Generation> generation;
  {
    base::MutexLock lock(&items_mutex_);
    const auto found = items_.find(request_id);
    if (found == items_.end()) return;
    generation = std::move(found->second.generation);
    // Which groups are kept must not depend on which of them happen to be quick.
    const bool may_be_kept = options_.select() != v1::SELECT_ORDER_LOWEST_INDEX ||
                             found->second.order < options_.groups_total();
    groups_finished_ += may_be_kept;
    items_.erase(found);
  }
  starter_->Settle(*generation);
  const bool is_short = LongWorkThread::IsShortAnswer(generation->answer_bytes());
  long_work_->RunOrPost(is_short, [self = rpc::SharedFrom(this), generation] {
    self->SendAnswer(generation->Response());
  });
}

void GenerateManyHandler::SendAnswer(v1::GenerateResponse response) {
  const std::string request_id = response.request_id();
  std::vector<v1::Sample> samples(std::make_move_iterator(response.mutable_samples()->begin()),
                                  std::make_move_iterator(response.mutable_samples()->end()));
  response.clear_samples();
  v1::GenerateManyResponse part;
  part.set_request_id(request_id);
  *part.mutable_response() = std::move(response);
  size_t part_bytes = part.ByteSizeLong();
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t bytes = samples[i].ByteSizeLong();
    if (part.response().samples_size() > 0 && part_bytes + bytes > kPartBytes) {
      part.set_more(true);
      Send(std::exchange(part, {}), /*frees_slot=*/false);
      part.set_request_id(request_id);
      part_bytes = 0;
    }
    *part.mutable_response()->add_samples() = std::move(samples[i]);
    part_bytes += bytes;
  }
  Send(std::move(part), /*frees_slot=*/true);
}

void GenerateManyHandler::SendError(const std::string& request_id, const absl::Status& status) {
  v1::GenerateManyResponse message;
  message.set_request_id(request_id);
  *message.mutable_error() = rpc::ToErrorDetail(status);
  Send(std::move(message), /*frees_slot=*/true);
}

void GenerateManyHandler::Send(v1::GenerateManyResponse message, bool frees_slot) {
  {
    base::MutexLock lock(&items_mutex_);
    sent_.push_back({frees_slot, clock_->Now()});
    (void)Write(std::move(message));
  }
  // The work is done; that nobody reads the answer is this stream's own affair.
  if (frees_slot) pool_->Give(this);
}

void GenerateManyHandler::OnWritten() {
  {
    base::MutexLock lock(&items_mutex_);
    if (sent_.front().frees_slot) --slots_used_;
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
    // A prompt that was read is answered, unless nothing more is wanted.
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

void GenerateManyHandler::OnClosed(const absl::Status& /*status*/) {
  {
    base::MutexLock lock(&items_mutex_);
    closed_ = true;
    pending_.clear();
  }
  pool_->Leave(this);
  // A message may have been on its way while the client was found to be gone.
  LeaveItems();
}

void GenerateManyHandler::LeaveItems() {
  absl::flat_hash_map<std::string, Item> items;
  {
    base::MutexLock lock(&items_mutex_);
    items.swap(items_);
  }
  for (auto& [id, item] : items) {
    if (item.generation != nullptr) item.generation->Unsubscribe(item.observer);
  }
}

void GenerateManyHandler::Tick(absl::Time now, bool draining) {
  std::vector<std::shared_ptr<Generation>> ending;
  bool idle = false;
  {
    base::MutexLock lock(&items_mutex_);
    const bool enough_groups = EnoughGroupsLocked();
    for (auto& [id, item] : items_) {
      if ((item.enough || enough_groups) && item.generation != nullptr) {
        ending.push_back(item.generation);
      }
    }
    draining_ = draining;
    idle = !sent_.empty() && now - sent_.front().since > limits_.idle_timeout;
  }
  for (const auto& generation : ending) generation->EndEarly(v1::FINISH_REASON_PARTIAL);
  if (draining) Proceed();
  if (idle) {
    LeaveItems();
    Abort(absl::DeadlineExceededError("an answer was not read within stream_idle_timeout"));
  }
}

}  // namespace lockstep::gateway
