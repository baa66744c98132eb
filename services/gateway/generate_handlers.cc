#include "services/gateway/generate_handlers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_conversion.h"

namespace lockstep::gateway {
namespace {

// RESOURCE_EXHAUSTED when an answer is larger than a message may be.
template <typename Response>
absl::StatusOr<Response> CheckSize(Response response, const Generation& generation) {
  const int64_t limit = generation.context().limits->message_bytes_max;
  const int64_t bytes = static_cast<int64_t>(response.ByteSizeLong());
  if (bytes <= limit) return response;
  return absl::ResourceExhaustedError(
      absl::StrCat("the answer has ", bytes, " bytes, server.message_bytes_max is ", limit,
                   "; ask for fewer samples, or use GenerateStream"));
}

// A request of one failed sample is a failed request.
absl::StatusOr<v1::GenerateResponse> ResponseOf(const Generation& generation) {
  v1::GenerateResponse response = generation.Response();
  if (response.samples_size() == 1 &&
      response.samples(0).finish_reason() == v1::FINISH_REASON_ERROR) {
    return rpc::FromErrorDetail(response.samples(0).error());
  }
  return CheckSize(std::move(response), generation);
}

absl::StatusOr<v1::ScoreResponse> ScoreOf(const Generation& generation) {
  LOCKSTEP_ASSIGN_OR_RETURN(v1::GenerateResponse generated, ResponseOf(generation));
  v1::Sample* sample = generated.mutable_samples(0);
  if (sample->finish_reason() == v1::FINISH_REASON_ABORT) {
    return absl::AbortedError("the request was aborted");
  }
  v1::ScoreResponse response;
  response.set_request_id(generated.request_id());
  response.mutable_logprobs()->Swap(sample->mutable_prompt_logprobs());
  response.mutable_weight_versions()->Swap(sample->mutable_weight_versions());
  response.mutable_usage()->Swap(sample->mutable_usage());
  response.mutable_fingerprint()->Swap(generated.mutable_fingerprint());
  response.set_mode(generated.mode());
  response.mutable_receipt()->Swap(sample->mutable_receipt());
  return CheckSize(std::move(response), generation);
}

}  // namespace

void GenerateHandler::Start() {
  auto generation =
      starter_->Generate(request(), starter_->ScopeToRun(scope()), Generation::Credit::kLedger);
  if (!generation.ok()) return Respond(generation.status());
  generation_ = *std::move(generation);
  auto observer = std::make_shared<FinishObserver>([self = rpc::SharedFrom(this)] {
    self->starter_->Settle(*self->generation_);
    self->long_work_->RunOrPost(LongWorkThread::IsShortAnswer(self->generation_->answer_bytes()),
                                [self] { self->Respond(ResponseOf(*self->generation_)); });
  });
  observer_ = observer.get();
  generation_->Subscribe(std::move(observer));
}

void GenerateHandler::OnCancelled() {
  if (generation_ != nullptr) generation_->Unsubscribe(observer_);
}

void ScoreHandler::Start() {
  auto generation = starter_->Score(request(), scope());
  if (!generation.ok()) return Respond(generation.status());
  generation_ = *std::move(generation);
  auto observer = std::make_shared<FinishObserver>([self = rpc::SharedFrom(this)] {
    self->starter_->Settle(*self->generation_);
    self->long_work_->RunOrPost(LongWorkThread::IsShortAnswer(self->generation_->answer_bytes()),
                                [self] { self->Respond(ScoreOf(*self->generation_)); });
  });
  observer_ = observer.get();
  generation_->Subscribe(std::move(observer));
}

void ScoreHandler::OnCancelled() {
  if (generation_ != nullptr) generation_->Unsubscribe(observer_);
}

class GenerateStreamHandler::Observer final : public GenerationObserver {
 public:
  explicit Observer(std::shared_ptr<GenerateStreamHandler> handler)
      : handler_(std::move(handler)) {}
  void OnDelta(v1::GenerateDelta delta) override { handler_->Send(std::move(delta)); }
  void OnFinished() override {
    handler_->starter_->Settle(*handler_->generation_);
    handler_->Finish(absl::OkStatus());
  }
  bool wants_deltas() const override { return true; }

 private:
  const std::shared_ptr<GenerateStreamHandler> handler_;
};

void GenerateStreamHandler::Start() {
  auto generation =
      starter_->Generate(request(), starter_->ScopeToRun(scope()), Generation::Credit::kReader);
  if (!generation.ok()) return Finish(generation.status());
  generation_ = *std::move(generation);
  v1::GenerateDelta first;
  *first.mutable_header() = generation_->Header();
  first.set_index(generation_->context().request.first_sample_index);
  Send(std::move(first));
  auto observer = std::make_shared<Observer>(rpc::SharedFrom(this));
  observer_ = observer.get();
  generation_->Subscribe(std::move(observer));
}

void GenerateStreamHandler::Send(v1::GenerateDelta delta) {
  base::MutexLock lock(&sent_mutex_);
  sent_.push_back({delta.index() - generation_->context().request.first_sample_index,
                   static_cast<int64_t>(delta.token_ids().size() / sizeof(uint32_t))});
  (void)Write(std::move(delta));
}

void GenerateStreamHandler::OnWritten() {
  Sent sent;
  {
    base::MutexLock lock(&sent_mutex_);
    sent = sent_.front();
    sent_.pop_front();
  }
  if (sent.tokens > 0) generation_->Grant(sent.sample, sent.tokens);
}

void GenerateStreamHandler::OnCancelled() {
  if (generation_ != nullptr) generation_->Unsubscribe(observer_);
}

}  // namespace lockstep::gateway
