#include "services/gateway/gateway_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/gateway/gateway_queries.h"
#include "services/gateway/generate_handlers.h"
#include "services/gateway/own_abort.h"
#include "services/gateway/request_validator.h"

namespace lockstep::gateway {
namespace {

using Scheduler = v1::SchedulerService::StubInterface::async_interface;

// Where starting it means work on a text of `bytes`, it starts on the thread for that.
template <typename H, typename... Args>
H* StartByText(LongWorkThread* long_work, size_t bytes, Args&&... args) {
  if (LongWorkThread::IsShortText(bytes)) return rpc::StartHandler<H>(std::forward<Args>(args)...);
  return rpc::StartHandlerOn<H>(
      [long_work](LongWorkThread::Work work) { long_work->Post(std::move(work)); },
      std::forward<Args>(args)...);
}

absl::Status NotServed(const char* method) {
  return absl::UnimplementedError(absl::StrCat(method, ": this version does not serve it"));
}

class UpdateWeightsHandler final
    : public rpc::ClientStreamHandler<v1::UpdateWeightsRequest, v1::UpdateWeightsResponse> {
 public:
  UpdateWeightsHandler(grpc::CallbackServerContext* context, v1::UpdateWeightsResponse* response)
      : ClientStreamHandler(context, response) {}

 private:
  void Start() override { Finish(NotServed("UpdateWeights")); }
  void OnMessage(v1::UpdateWeightsRequest&) override {}
  void OnHalfClose() override {}
};

}  // namespace

GatewayService::GatewayService(const GatewayOptions& options, Parts parts)
    : ParsingService(v1::RolloutService::service_full_name()),
      default_deadline_(options.default_deadline),
      many_limits_{.slots_max = options.stream_slots, .idle_timeout = options.stream_idle_timeout},
      parts_(std::move(parts)) {
  ServeGeneration();
  ServeRelays();
  ServeAnswers();
  RefuseTheRest();
}

template <typename Request, typename Response>
void GatewayService::ServeAnswer(absl::string_view method,
                                 std::function<absl::StatusOr<Response>(const Request&)> function) {
  ServeUnary<Request, Response>(
      method, [this, function = std::move(function)](grpc::CallbackServerContext* context,
                                                     const Request* request, Response* response) {
        return StartByText<LocalHandler<Request, Response>>(
            parts_.long_work, request->ByteSizeLong(), function, context, request, response);
      });
}

template <typename Request, typename Response>
void GatewayService::ServeRelay(
    absl::string_view method, typename RelayHandler<Request, Response>::Method relayed,
    std::function<typename RelayHandler<Request, Response>::OnAnswer(const Request&)> on_call,
    typename RelayHandler<Request, Response>::Check check) {
  using Relay = RelayHandler<Request, Response>;
  ServeUnary<Request, Response>(method, [this, relayed, check, on_call = std::move(on_call)](
                                            grpc::CallbackServerContext* context,
                                            const Request* request, Response* response) {
    return rpc::StartHandler<Relay>(parts_.scheduler, relayed, default_deadline_, check,
                                    on_call ? typename Relay::OnCall(on_call) : nullptr, context,
                                    request, response);
  });
}

template <typename Request, typename Response>
void GatewayService::Refuse(const char* method) {
  ServeUnary<Request, Response>(method, [method](grpc::CallbackServerContext* context,
                                                 const Request* request, Response* response) {
    return rpc::StartHandler<LocalHandler<Request, Response>>(
        [method](const Request&) -> absl::StatusOr<Response> { return NotServed(method); }, context,
        request, response);
  });
}

// What counts as requests.
void GatewayService::ServeGeneration() {
  const auto count = [this](const rpc::CallScope& scope, const absl::Status& status) {
    const RequestMeter& meter = parts_.starter->meter();
    meter.Count(meter.Arrive(scope.deadline), status);
  };
  ServeUnary<v1::GenerateRequest, v1::GenerateResponse>(
      "Generate",
      [this](grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
             v1::GenerateResponse* response) {
        return StartByText<GenerateHandler>(parts_.long_work, request->prompt_text().size(),
                                            parts_.starter, parts_.long_work, context, request,
                                            response);
      },
      count);
  ServeUnary<v1::ScoreRequest, v1::ScoreResponse>(
      "Score",
      [this](grpc::CallbackServerContext* context, const v1::ScoreRequest* request,
             v1::ScoreResponse* response) {
        return rpc::StartHandler<ScoreHandler>(parts_.starter, parts_.long_work, context, request,
                                               response);
      },
      count);
  ServeServerStream<v1::GenerateRequest, v1::GenerateDelta>(
      "GenerateStream",
      [this](grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
        return StartByText<GenerateStreamHandler>(parts_.long_work, request->prompt_text().size(),
                                                  parts_.starter, context, request);
      },
      count);
  ServeBidi<v1::GenerateManyRequest, v1::GenerateManyResponse>(
      "GenerateMany", [this](grpc::CallbackServerContext* context) {
        return rpc::StartHandler<GenerateManyHandler>(parts_.starter, parts_.long_work,
                                                      many_limits_, parts_.clock, parts_.streams,
                                                      parts_.slots, context);
      });
}

void GatewayService::ServeRelays() {
  ServeRelay<v1::AbortRequest, v1::AbortResponse>(
      "Abort", &Scheduler::Abort,
      [table = parts_.table](
          const v1::AbortRequest& abort) -> absl::AnyInvocable<void(v1::AbortResponse*)> {
        OwnAbort own = OwnAbort::Of(abort, *table);
        own.EndStranded();
        return [own = std::move(own)](v1::AbortResponse* answer) {
          own.EndRest();
          own.AddTo(answer);
        };
      });
  ServeRelay<v1::PauseRequest, v1::PauseResponse>(
      "Pause", &Scheduler::Pause,
      [table = parts_.table](
          const v1::PauseRequest& pause) -> absl::AnyInvocable<void(v1::PauseResponse*)> {
        if (pause.mode() != v1::PAUSE_MODE_ABORT) return nullptr;
        OwnAbort own = OwnAbort::OfAll(*table);
        own.EndStranded();
        return [own = std::move(own)](v1::PauseResponse*) { own.EndRest(); };
      });
  ServeRelay<v1::ResumeRequest, v1::ResumeResponse>("Resume", &Scheduler::Resume);
  ServeRelay<v1::GetStateRequest, v1::GetStateResponse>("GetState", &Scheduler::GetState);
  ServeRelay<v1::FlushCacheRequest, v1::FlushCacheResponse>(
      "FlushCache", &Scheduler::FlushCache, nullptr, [](const v1::FlushCacheRequest& flush) {
        return CheckName(flush.cache_namespace(), "cache_namespace");
      });
}

void GatewayService::ServeAnswers() {
  ServeAnswer<v1::TokenizeRequest, v1::TokenizeResponse>("Tokenize", [this](const auto& r) {
    return AnswerTokenize(parts_.tokenizer.get(), *parts_.cluster, r);
  });
  ServeAnswer<v1::DetokenizeRequest, v1::DetokenizeResponse>("Detokenize", [this](const auto& r) {
    return AnswerDetokenize(parts_.tokenizer, *parts_.cluster, r);
  });
  ServeAnswer<v1::EstimateRequest, v1::EstimateResponse>("Estimate", [this](const auto& r) {
    return AnswerEstimate(*parts_.starter, *parts_.cluster, parts_.throughput->per_second(), r);
  });
  ServeAnswer<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      "GetServerInfo", [this](const auto&) { return AnswerServerInfo(*parts_.cluster); });
}

void GatewayService::RefuseTheRest() {
  Refuse<v1::GetWeightsRequest, v1::GetWeightsResponse>("GetWeights");
  Refuse<v1::SetWeightVersionRequest, v1::SetWeightVersionResponse>("SetWeightVersion");
  Refuse<v1::ReleaseMemoryRequest, v1::ReleaseMemoryResponse>("ReleaseMemory");
  Refuse<v1::ResumeMemoryRequest, v1::ResumeMemoryResponse>("ResumeMemory");
  Refuse<v1::ReplayRequest, v1::ReplayResponse>("Replay");
}

grpc::ServerReadReactor<v1::UpdateWeightsRequest>* GatewayService::UpdateWeights(
    grpc::CallbackServerContext* context, v1::UpdateWeightsResponse* response) {
  return rpc::StartHandler<UpdateWeightsHandler>(context, response);
}

}  // namespace lockstep::gateway
