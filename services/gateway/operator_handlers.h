#pragma once

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/rpc/call_unary.h"
#include "common/rpc/handler.h"
#include "lockstep/v1/rollout.pb.h"
#include "lockstep/v1/scheduler.grpc.pb.h"

namespace lockstep::gateway {

// Passes a call on to the scheduler, which decides, and its answer back. `check`, if there is one,
// may refuse it. `on_call` sees the call first, and what it returns, if anything, sees a successful
// answer first.
template <typename Request, typename Response>
class RelayHandler final : public rpc::UnaryHandler<Request, Response> {
 public:
  using Async = v1::SchedulerService::StubInterface::async_interface;
  using Method = void (Async::*)(grpc::ClientContext*, const Request*, Response*,
                                 std::function<void(grpc::Status)>);
  using OnAnswer = absl::AnyInvocable<void(Response*)>;
  using OnCall = absl::AnyInvocable<OnAnswer(const Request&)>;
  using Check = absl::Status (*)(const Request&);

  RelayHandler(v1::SchedulerService::StubInterface* scheduler, Method method,
               absl::Duration default_deadline, Check check, OnCall on_call,
               grpc::CallbackServerContext* context, const Request* request, Response* response)
      : rpc::UnaryHandler<Request, Response>(context, request, response),
        scheduler_(scheduler),
        method_(method),
        default_deadline_(default_deadline),
        check_(check),
        on_call_(std::move(on_call)) {}

 private:
  void Start() override {
    if (check_ != nullptr) {
      if (absl::Status status = check_(this->request()); !status.ok()) return this->Respond(status);
    }
    rpc::CallScope scope = this->scope();
    scope.deadline = std::min(scope.deadline, absl::Now() + default_deadline_);
    auto child = rpc::ChildScope(scope, absl::Now());
    if (!child.ok()) return this->Respond(child.status());
    if (on_call_) on_answer_ = on_call_(this->request());
    auto done = [self = rpc::SharedFrom(this)](absl::StatusOr<Response> response) {
      if (response.ok() && self->on_answer_) self->on_answer_(&*response);
      self->Respond(std::move(response));
    };
    call_ = rpc::CallUnary(scheduler_->async(), method_, this->request(), *child, std::move(done));
  }
  void OnCancelled() override { call_.Cancel(); }

  v1::SchedulerService::StubInterface* const scheduler_;
  const Method method_;
  const absl::Duration default_deadline_;
  const Check check_;
  OnCall on_call_;
  OnAnswer on_answer_;
  rpc::CallHandle call_;
};

// Answers at once from a function of the request.
template <typename Request, typename Response>
class LocalHandler final : public rpc::UnaryHandler<Request, Response> {
 public:
  using Function = absl::AnyInvocable<absl::StatusOr<Response>(const Request&)>;
  LocalHandler(Function function, grpc::CallbackServerContext* context, const Request* request,
               Response* response)
      : rpc::UnaryHandler<Request, Response>(context, request, response),
        function_(std::move(function)) {}

 private:
  void Start() override { this->Respond(function_(this->request())); }
  Function function_;
};

}  // namespace lockstep::gateway
