#pragma once

#include <memory>

#include "common/rpc/parsing_service.h"
#include "lockstep/v1/rollout.grpc.pb.h"
#include "services/gateway/cluster_view.h"
#include "services/gateway/gateway_options.h"
#include "services/gateway/generate_many_handler.h"
#include "services/gateway/long_work_thread.h"
#include "services/gateway/operator_handlers.h"
#include "services/gateway/request_starter.h"
#include "services/gateway/throughput_meter.h"

namespace lockstep::gateway {

// The trainer's RPCs, one handler each. Those for weights, memory and replay are not served yet:
// they answer UNIMPLEMENTED.
class GatewayService final : public rpc::ParsingService<v1::RolloutService::CallbackService> {
 public:
  struct Parts {
    const RequestStarter* starter = nullptr;
    LongWorkThread* long_work = nullptr;
    RequestTable* table = nullptr;
    ClusterView* cluster = nullptr;
    ManyStreams* streams = nullptr;
    SlotPool* slots = nullptr;
    v1::SchedulerService::StubInterface* scheduler = nullptr;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    const ThroughputMeter* throughput = nullptr;
    const base::Clock* clock = nullptr;
  };
  GatewayService(const GatewayOptions& options, Parts parts);

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateDelta>* GenerateStream(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseRequest* request,
                                  v1::PauseResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeResponse* response) override;
  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const v1::GetStateRequest* request,
                                     v1::GetStateResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Estimate(grpc::CallbackServerContext* context,
                                     const v1::EstimateRequest* request,
                                     v1::EstimateResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

  grpc::ServerReadReactor<v1::UpdateWeightsRequest>* UpdateWeights(
      grpc::CallbackServerContext* context, v1::UpdateWeightsResponse* response) override;
  grpc::ServerUnaryReactor* GetWeights(grpc::CallbackServerContext* context,
                                       const v1::GetWeightsRequest* request,
                                       v1::GetWeightsResponse* response) override;
  grpc::ServerUnaryReactor* SetWeightVersion(grpc::CallbackServerContext* context,
                                             const v1::SetWeightVersionRequest* request,
                                             v1::SetWeightVersionResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseMemory(grpc::CallbackServerContext* context,
                                          const v1::ReleaseMemoryRequest* request,
                                          v1::ReleaseMemoryResponse* response) override;
  grpc::ServerUnaryReactor* ResumeMemory(grpc::CallbackServerContext* context,
                                         const v1::ResumeMemoryRequest* request,
                                         v1::ResumeMemoryResponse* response) override;
  grpc::ServerUnaryReactor* Replay(grpc::CallbackServerContext* context,
                                   const v1::ReplayRequest* request,
                                   v1::ReplayResponse* response) override;

 private:
  // Every method that takes one request takes it by the function of its name.
  void ServeGeneration();
  void ServeTheRest();
  template <typename Request, typename Response>
  void Serve(absl::string_view method,
             grpc::ServerUnaryReactor* (GatewayService::*start)(grpc::CallbackServerContext*,
                                                                const Request*, Response*),
             OnUnparsed on_unparsed = nullptr);

  const absl::Duration default_deadline_;
  const GenerateManyHandler::Limits many_limits_;
  const Parts parts_;
};

}  // namespace lockstep::gateway
