#include "common/rpc/health_client.h"

#include "absl/time/clock.h"
#include "common/rpc/deadline.h"
#include "common/rpc/status_conversion.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"

namespace lockstep::rpc {

absl::StatusOr<bool> CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                                 const std::string& name, absl::Duration timeout) {
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  ApplyScope({.deadline = absl::Now() + timeout}, &context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(name);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

}  // namespace lockstep::rpc
