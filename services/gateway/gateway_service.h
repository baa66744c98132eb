#pragma once

#include <functional>
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

  // Refuses at once, so that it needs no message.
  grpc::ServerReadReactor<v1::UpdateWeightsRequest>* UpdateWeights(
      grpc::CallbackServerContext* context, v1::UpdateWeightsResponse* response) override;

 private:
  void ServeGeneration();
  void ServeRelays();
  void ServeAnswers();
  void RefuseTheRest();
  // Answered here, at once, by `function`.
  template <typename Request, typename Response>
  void ServeAnswer(absl::string_view method,
                   std::function<absl::StatusOr<Response>(const Request&)> function);
  // Answered by the scheduler.
  template <typename Request, typename Response>
  void ServeRelay(absl::string_view method,
                  typename RelayHandler<Request, Response>::Method relayed,
                  std::function<typename RelayHandler<Request, Response>::OnAnswer(const Request&)>
                      on_call = nullptr,
                  typename RelayHandler<Request, Response>::Check check = nullptr);
  template <typename Request, typename Response>
  void Refuse(const char* method);

  const absl::Duration default_deadline_;
  const GenerateManyHandler::Limits many_limits_;
  const Parts parts_;
};

}  // namespace lockstep::gateway
