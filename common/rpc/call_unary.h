#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/rpc/deadline.h"
#include "common/rpc/status_conversion.h"
#include "grpcpp/client_context.h"

namespace lockstep::rpc {

// Cancels a call that is still running; does nothing afterwards. Copyable, thread-safe.
class CallHandle {
 public:
  CallHandle() = default;
  explicit CallHandle(std::weak_ptr<grpc::ClientContext> context) : context_(std::move(context)) {}
  void Cancel() const {
    if (const auto context = context_.lock()) context->TryCancel();
  }

 private:
  std::weak_ptr<grpc::ClientContext> context_;
};

// Makes one unary call. `done` runs exactly once, on one of gRPC's threads, and must not block.
//
//   using Scheduler = v1::SchedulerService::StubInterface::async_interface;
//   rpc::CallUnary(stub->async(), &Scheduler::Admit, std::move(request), scope,
//                  [](absl::StatusOr<v1::AdmitResponse> response) { … });
//
// The channel, not the stub, must outlive the call; gRPC keeps it alive by itself.
template <typename Stub, typename Interface, typename Request, typename Response>
CallHandle CallUnary(
    Stub* stub,
    void (Interface::*method)(grpc::ClientContext*, const Request*, Response*,
                              std::function<void(grpc::Status)>),
    std::type_identity_t<Request> request, const CallScope& scope,
    std::type_identity_t<absl::AnyInvocable<void(absl::StatusOr<Response>)>> done) {
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
    absl::AnyInvocable<void(absl::StatusOr<Response>)> done;
  };
  const auto call = std::make_shared<Call>();
  ApplyScope(scope, &call->context);
  call->request = std::move(request);
  call->done = std::move(done);
  (stub->*method)(&call->context, &call->request, &call->response, [call](grpc::Status status) {
    if (status.ok()) {
      call->done(std::move(call->response));
    } else {
      call->done(FromGrpcStatus(status));
    }
  });
  return CallHandle(std::shared_ptr<grpc::ClientContext>(call, &call->context));
}

}  // namespace lockstep::rpc
