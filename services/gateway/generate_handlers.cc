#include "services/gateway/generate_handlers.h"

#include <utility>

namespace lockstep::gateway {
namespace {

absl::StatusOr<RequestStarter::Started> Begin(const RequestStarter& starter,
                                              const v1::GenerateRequest& request,
                                              const rpc::CallScope& scope) {
  return starter.Generate(request, starter.ScopeToRun(scope), AnswerForm::kWhole);
}

absl::StatusOr<RequestStarter::Started> Begin(const RequestStarter& starter,
                                              const v1::ScoreRequest& request,
                                              const rpc::CallScope& scope) {
  return starter.Score(request, scope);
}

template <typename Response>
constexpr AnswerForm kFormOf = AnswerForm::kWhole;
template <>
constexpr AnswerForm kFormOf<v1::ScoreResponse> = AnswerForm::kScores;

template <typename Response>
absl::StatusOr<Response> AnswerOf(const Generation& generation);

template <>
absl::StatusOr<v1::GenerateResponse> AnswerOf(const Generation& generation) {
  return generation.Response();
}

template <>
absl::StatusOr<v1::ScoreResponse> AnswerOf(const Generation& generation) {
  v1::GenerateResponse generated = generation.Response();
  v1::Sample* sample = generated.mutable_samples(0);
  if (sample->finish_reason() == v1::FINISH_REASON_ABORT) {
    return generation.TimeIsUp()
               ? absl::DeadlineExceededError("the deadline came before the scores")
               : absl::AbortedError("the request was aborted");
  }
  v1::ScoreResponse response;
  response.set_request_id(generated.request_id());
  response.mutable_logprobs()->Swap(sample->mutable_prompt_logprobs());
  response.mutable_weight_versions()->Swap(sample->mutable_weight_versions());
  response.mutable_usage()->Swap(sample->mutable_usage());
  response.mutable_fingerprint()->Swap(generated.mutable_fingerprint());
  response.set_mode(generated.mode());
  response.mutable_receipt()->Swap(sample->mutable_receipt());
  return response;
}

}  // namespace

template <typename Request, typename Response>
void AnswerHandler<Request, Response>::Start() {
  auto started = Begin(*starter_, this->request(), this->scope());
  if (!started.ok()) return this->Respond(started.status());
  generation_ = std::move(started->generation);
  auto observer = std::make_shared<FinishObserver>(
      [self = rpc::SharedFrom(this)](const std::shared_ptr<const Generation>& ended) {
        self->starter_->Settle(*ended);
        absl::Status status = ended->Outcome();
        const AnswerBytes bytes = ended->MeasureAnswer();
        if (status.ok()) {
          status = CheckAnswerFits(bytes, kFormOf<Response>, *ended->context().limits);
        }
        if (!status.ok()) return self->Respond(std::move(status));
        self->long_work_->RunOrPost(LongWorkThread::IsShortAnswer(bytes.whole),
                                    [self, ended] { self->Respond(AnswerOf<Response>(*ended)); });
      });
  observer_ = observer.get();
  generation_->Subscribe(std::move(observer), started->deadline);
}

template <typename Request, typename Response>
void AnswerHandler<Request, Response>::OnCancelled() {
  if (generation_ != nullptr) generation_->Unsubscribe(observer_);
}

template <typename Request, typename Response>
void AnswerHandler<Request, Response>::OnClosed(const absl::Status& status) {
  starter_->meter().Count(arrival_, this->AsClientGot(status));
}

template class AnswerHandler<v1::GenerateRequest, v1::GenerateResponse>;
template class AnswerHandler<v1::ScoreRequest, v1::ScoreResponse>;

class GenerateStreamHandler::Observer final : public GenerationObserver {
 public:
  explicit Observer(std::shared_ptr<GenerateStreamHandler> handler)
      : handler_(std::move(handler)) {}
  void OnDelta(v1::GenerateDelta delta) override { handler_->Send(std::move(delta)); }
  void OnFinished(const std::shared_ptr<const Generation>& ended) override {
    handler_->starter_->Settle(*ended);
    handler_->Finish(ended->Outcome());
  }
  bool wants_deltas() const override { return true; }

 private:
  const std::shared_ptr<GenerateStreamHandler> handler_;
};

void GenerateStreamHandler::Start() {
  auto started =
      starter_->Generate(request(), starter_->ScopeToRun(scope()), AnswerForm::kAsItComes);
  if (!started.ok()) return Finish(started.status());
  generation_ = std::move(started->generation);
  v1::GenerateDelta first;
  *first.mutable_header() = generation_->Header();
  first.set_index(generation_->context().request.first_sample_index);
  Send(std::move(first));
  auto observer = std::make_shared<Observer>(rpc::SharedFrom(this));
  observer_ = observer.get();
  generation_->Subscribe(std::move(observer), started->deadline);
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

void GenerateStreamHandler::OnClosed(const absl::Status& status) {
  starter_->meter().Count(arrival_, AsClientGot(status));
}

}  // namespace lockstep::gateway
