#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/rpc/handler_base.h"

// One object per RPC being served. A handler derives from UnaryHandler, ServerStreamHandler,
// ClientStreamHandler or BidiHandler and holds only what its RPC is about:
//
//   class ScoreHandler final : public rpc::UnaryHandler<ScoreRequest, ScoreResponse> {
//    public:
//     ScoreHandler(Core* core, grpc::CallbackServerContext* context, const ScoreRequest* request,
//                  ScoreResponse* response)
//         : UnaryHandler(context, request, response), core_(core) {}
//    private:
//     void Start() override {
//       core_->Score(Decode(request()), [self = rpc::SharedFrom(this)](absl::StatusOr<Scores> s) {
//         self->Respond(Encode(std::move(s)));
//       });
//     }
//     void OnCancelled() override { core_->Cancel(id_); }
//   };
//   grpc::ServerUnaryReactor* Score(context, request, response) override {
//     return rpc::StartHandler<ScoreHandler>(core_, context, request, response);
//   }
//
// Lifetime, the single finish, one write and one read in flight: see handler_base.h. What a handler
// has to know of it:
// - Public members are thread-safe, may be called from every callback, and do nothing once the RPC
//   is closed, so an answer that comes too late is harmless.
// - Callbacks must not block. OnMessage and OnHalfClose never overlap each other; all others may
//   run at the same time, on any of gRPC's threads.
// - request() and context() are gRPC's and valid in Start() only: copy what is needed later.
namespace lockstep::rpc {

template <typename Request, typename Response>
class UnaryHandler : public Handler<grpc::ServerUnaryReactor> {
 public:
  // Ends the RPC with an answer or an error.
  void Respond(absl::StatusOr<Response> response) {
    base::MutexLock lock(&mutex_);
    if (closing_) return;
    if (response.ok()) *response_ = *std::move(response);
    CloseLocked(response.status());
  }

 protected:
  UnaryHandler(grpc::CallbackServerContext* context, const Request* request, Response* response)
      : Handler(context), request_(request), response_(response) {}
  // Valid in Start() only.
  const Request& request() const { return *request_; }

 private:
  const Request* const request_;
  Response* const response_;  // gRPC's, written before the finish only
};

template <typename Request, typename Response>
class ServerStreamHandler
    : public WritingHandler<Handler<grpc::ServerWriteReactor<Response>>, Response> {
 protected:
  ServerStreamHandler(grpc::CallbackServerContext* context, const Request* request,
                      OutboxLimits limits = {})
      : ServerStreamHandler::WritingHandler(context, limits), request_(request) {}
  // Valid in Start() only.
  const Request& request() const { return *request_; }

 private:
  const Request* const request_;
};

template <typename Request, typename Response>
class ClientStreamHandler
    : public ReadingHandler<Handler<grpc::ServerReadReactor<Request>>, Request> {
 public:
  // Ends the RPC with an answer or an error.
  void Respond(absl::StatusOr<Response> response) {
    base::MutexLock lock(&this->mutex_);
    if (this->closing_) return;
    if (response.ok()) *response_ = *std::move(response);
    this->CloseLocked(response.status());
  }

 protected:
  ClientStreamHandler(grpc::CallbackServerContext* context, Response* response)
      : ClientStreamHandler::ReadingHandler(context), response_(response) {}

 private:
  Response* const response_;  // gRPC's, written before the finish only
};

template <typename Request, typename Response>
class BidiHandler
    : public ReadingHandler<
          WritingHandler<Handler<grpc::ServerBidiReactor<Request, Response>>, Response>, Request> {
 protected:
  explicit BidiHandler(grpc::CallbackServerContext* context, OutboxLimits limits = {})
      : BidiHandler::ReadingHandler(context, limits) {}
};

// Makes a handler and starts it; gRPC's service method returns the result.
template <typename H, typename... Args>
H* StartHandler(Args&&... args) {
  const std::shared_ptr<H> handler = std::make_shared<H>(std::forward<Args>(args)...);
  handler->StartOwned();
  return handler.get();
}

// The same for a Start() that takes long: `run` takes a function of no arguments and calls it,
// once, on a thread that may be busy for so long.
template <typename H, typename Run, typename... Args>
H* StartHandlerOn(Run&& run, Args&&... args) {
  const std::shared_ptr<H> handler = std::make_shared<H>(std::forward<Args>(args)...);
  handler->StartOwnedOn(std::forward<Run>(run));
  return handler.get();
}

// A reference for whoever will answer later; keep a std::weak_ptr of it where no answer is owed.
template <typename H>
std::shared_ptr<H> SharedFrom(H* handler) {
  return std::static_pointer_cast<H>(handler->shared_from_this());
}

}  // namespace lockstep::rpc
