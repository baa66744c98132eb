#include "services/gateway/gateway_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/gateway/gateway_queries.h"
#include "services/gateway/generate_handlers.h"
#include "services/gateway/own_abort.h"

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

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Answer(LongWorkThread* long_work, grpc::CallbackServerContext* context,
                                 const Request* request, Response* response,
                                 typename LocalHandler<Request, Response>::Function function) {
  return StartByText<LocalHandler<Request, Response>>(
      long_work, request->ByteSizeLong(), std::move(function), context, request, response);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Relay(v1::SchedulerService::StubInterface* scheduler,
                                typename RelayHandler<Request, Response>::Method method,
                                absl::Duration default_deadline,
                                typename RelayHandler<Request, Response>::OnCall on_call,
                                grpc::CallbackServerContext* context, const Request* request,
                                Response* response) {
  return rpc::StartHandler<RelayHandler<Request, Response>>(
      scheduler, method, default_deadline, std::move(on_call), context, request, response);
}

absl::Status NotServed(const char* method) {
  return absl::UnimplementedError(absl::StrCat(method, ": this version does not serve it"));
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Refuse(const char* method, grpc::CallbackServerContext* context,
                                 const Request* request, Response* response) {
  return rpc::StartHandler<LocalHandler<Request, Response>>(
      [method](const Request&) -> absl::StatusOr<Response> { return NotServed(method); }, context,
      request, response);
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
  ServeTheRest();
}

template <typename Request, typename Response>
void GatewayService::Serve(absl::string_view method,
                           grpc::ServerUnaryReactor* (GatewayService::*start)(
                               grpc::CallbackServerContext*, const Request*, Response*),
                           OnUnparsed on_unparsed) {
  ServeUnary<Request, Response>(
      method,
      [this, start](grpc::CallbackServerContext* context, const Request* request,
                    Response* response) { return (this->*start)(context, request, response); },
      std::move(on_unparsed));
}

// What counts as requests.
void GatewayService::ServeGeneration() {
  const auto count = [this](const absl::Status& why) {
    parts_.starter->meter().Count({.code = why.code()});
  };
  Serve("Generate", &GatewayService::Generate, count);
  Serve("Score", &GatewayService::Score, count);
  ServeServerStream<v1::GenerateRequest, v1::GenerateDelta>(
      "GenerateStream",
      [this](grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
        return GenerateStream(context, request);
      },
      count);
  ServeBidi<v1::GenerateManyRequest, v1::GenerateManyResponse>(
      "GenerateMany", [this](grpc::CallbackServerContext* context) {
        return rpc::StartHandler<GenerateManyHandler>(parts_.starter, parts_.long_work,
                                                      many_limits_, parts_.clock, parts_.streams,
                                                      parts_.slots, context);
      });
}

void GatewayService::ServeTheRest() {
  Serve("Abort", &GatewayService::Abort);
  Serve("Pause", &GatewayService::Pause);
  Serve("Resume", &GatewayService::Resume);
  Serve("GetState", &GatewayService::GetState);
  Serve("GetWeights", &GatewayService::GetWeights);
  Serve("SetWeightVersion", &GatewayService::SetWeightVersion);
  Serve("FlushCache", &GatewayService::FlushCache);
  Serve("ReleaseMemory", &GatewayService::ReleaseMemory);
  Serve("ResumeMemory", &GatewayService::ResumeMemory);
  Serve("Replay", &GatewayService::Replay);
  Serve("Tokenize", &GatewayService::Tokenize);
  Serve("Detokenize", &GatewayService::Detokenize);
  Serve("Estimate", &GatewayService::Estimate);
  Serve("GetServerInfo", &GatewayService::GetServerInfo);
}

grpc::ServerUnaryReactor* GatewayService::Generate(grpc::CallbackServerContext* context,
                                                   const v1::GenerateRequest* request,
                                                   v1::GenerateResponse* response) {
  return StartByText<GenerateHandler>(parts_.long_work, request->prompt_text().size(),
                                      parts_.starter, parts_.long_work, context, request, response);
}

grpc::ServerWriteReactor<v1::GenerateDelta>* GatewayService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return StartByText<GenerateStreamHandler>(parts_.long_work, request->prompt_text().size(),
                                            parts_.starter, context, request);
}

grpc::ServerUnaryReactor* GatewayService::Score(grpc::CallbackServerContext* context,
                                                const v1::ScoreRequest* request,
                                                v1::ScoreResponse* response) {
  return rpc::StartHandler<ScoreHandler>(parts_.starter, parts_.long_work, context, request,
                                         response);
}

grpc::ServerUnaryReactor* GatewayService::Abort(grpc::CallbackServerContext* context,
                                                const v1::AbortRequest* request,
                                                v1::AbortResponse* response) {
  return Relay<v1::AbortRequest, v1::AbortResponse>(
      parts_.scheduler, &Scheduler::Abort, default_deadline_,
      [table = parts_.table](
          const v1::AbortRequest& abort) -> absl::AnyInvocable<void(v1::AbortResponse*)> {
        OwnAbort own = OwnAbort::Of(abort, *table);
        own.EndStranded();
        return [own = std::move(own)](v1::AbortResponse* answer) {
          own.EndRest();
          own.AddTo(answer);
        };
      },
      context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::Pause(grpc::CallbackServerContext* context,
                                                const v1::PauseRequest* request,
                                                v1::PauseResponse* response) {
  return Relay<v1::PauseRequest, v1::PauseResponse>(
      parts_.scheduler, &Scheduler::Pause, default_deadline_,
      [table = parts_.table](
          const v1::PauseRequest& pause) -> absl::AnyInvocable<void(v1::PauseResponse*)> {
        if (pause.mode() != v1::PAUSE_MODE_ABORT) return nullptr;
        OwnAbort own = OwnAbort::OfAll(*table);
        own.EndStranded();
        return [own = std::move(own)](v1::PauseResponse*) { own.EndRest(); };
      },
      context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::Resume(grpc::CallbackServerContext* context,
                                                 const v1::ResumeRequest* request,
                                                 v1::ResumeResponse* response) {
  return Relay<v1::ResumeRequest, v1::ResumeResponse>(
      parts_.scheduler, &Scheduler::Resume, default_deadline_, nullptr, context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::GetState(grpc::CallbackServerContext* context,
                                                   const v1::GetStateRequest* request,
                                                   v1::GetStateResponse* response) {
  return Relay<v1::GetStateRequest, v1::GetStateResponse>(parts_.scheduler, &Scheduler::GetState,
                                                          default_deadline_, nullptr, context,
                                                          request, response);
}

grpc::ServerUnaryReactor* GatewayService::FlushCache(grpc::CallbackServerContext* context,
                                                     const v1::FlushCacheRequest* request,
                                                     v1::FlushCacheResponse* response) {
  return Relay<v1::FlushCacheRequest, v1::FlushCacheResponse>(
      parts_.scheduler, &Scheduler::FlushCache, default_deadline_, nullptr, context, request,
      response);
}

grpc::ServerUnaryReactor* GatewayService::Tokenize(grpc::CallbackServerContext* context,
                                                   const v1::TokenizeRequest* request,
                                                   v1::TokenizeResponse* response) {
  return Answer<v1::TokenizeRequest, v1::TokenizeResponse>(
      parts_.long_work, context, request, response,
      [this](const auto& r) { return AnswerTokenize(parts_.tokenizer.get(), r); });
}

grpc::ServerUnaryReactor* GatewayService::Detokenize(grpc::CallbackServerContext* context,
                                                     const v1::DetokenizeRequest* request,
                                                     v1::DetokenizeResponse* response) {
  return Answer<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      parts_.long_work, context, request, response,
      [this](const auto& r) { return AnswerDetokenize(parts_.tokenizer, *parts_.cluster, r); });
}

grpc::ServerUnaryReactor* GatewayService::Estimate(grpc::CallbackServerContext* context,
                                                   const v1::EstimateRequest* request,
                                                   v1::EstimateResponse* response) {
  return Answer<v1::EstimateRequest, v1::EstimateResponse>(
      parts_.long_work, context, request, response, [this](const auto& r) {
        return AnswerEstimate(*parts_.starter, *parts_.cluster, parts_.throughput->per_second(), r);
      });
}

grpc::ServerUnaryReactor* GatewayService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest* request,
                                                        v1::GetServerInfoResponse* response) {
  return Answer<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      parts_.long_work, context, request, response,
      [this](const auto&) { return AnswerServerInfo(*parts_.cluster); });
}

grpc::ServerReadReactor<v1::UpdateWeightsRequest>* GatewayService::UpdateWeights(
    grpc::CallbackServerContext* context, v1::UpdateWeightsResponse* response) {
  return rpc::StartHandler<UpdateWeightsHandler>(context, response);
}

grpc::ServerUnaryReactor* GatewayService::GetWeights(grpc::CallbackServerContext* context,
                                                     const v1::GetWeightsRequest* request,
                                                     v1::GetWeightsResponse* response) {
  return Refuse("GetWeights", context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::SetWeightVersion(
    grpc::CallbackServerContext* context, const v1::SetWeightVersionRequest* request,
    v1::SetWeightVersionResponse* response) {
  return Refuse("SetWeightVersion", context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::ReleaseMemory(grpc::CallbackServerContext* context,
                                                        const v1::ReleaseMemoryRequest* request,
                                                        v1::ReleaseMemoryResponse* response) {
  return Refuse("ReleaseMemory", context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::ResumeMemory(grpc::CallbackServerContext* context,
                                                       const v1::ResumeMemoryRequest* request,
                                                       v1::ResumeMemoryResponse* response) {
  return Refuse("ResumeMemory", context, request, response);
}

grpc::ServerUnaryReactor* GatewayService::Replay(grpc::CallbackServerContext* context,
                                                 const v1::ReplayRequest* request,
                                                 v1::ReplayResponse* response) {
  return Refuse("Replay", context, request, response);
}

}  // namespace lockstep::gateway
