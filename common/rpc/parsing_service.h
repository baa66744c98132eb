#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/rpc/handler.h"
#include "common/rpc/received.h"
#include "grpcpp/impl/codegen/config_protobuf.h"
#include "grpcpp/support/server_callback.h"

namespace lockstep::rpc {

// A CallbackService of gRPC whose methods answer a request that does not parse with
// INVALID_ARGUMENT and details, as any other bad request. gRPC's own answer is an UNIMPLEMENTED
// without a word. The derived class names its methods in its constructor:
//
//   class EchoServer final : public rpc::ParsingService<EchoService::CallbackService> {
//    public:
//     EchoServer() : ParsingService(EchoService::service_full_name()) {
//       ServeUnary<EchoRequest, EchoResponse>(
//           "Unary", [this](auto... arguments) { return Unary(arguments...); });
//     }
//
// A method that it does not name stays as gRPC has it.
template <typename CallbackService>
class ParsingService : public CallbackService {
 protected:
  // Told of the end of each call without a message that parses, and of the status that its client
  // got: CANCELLED where it had gone, which is why most messages that never come do not. Must not
  // block; any thread.
  using OnUnparsed = std::function<void(const CallScope& scope, const absl::Status& status)>;

  explicit ParsingService(absl::string_view full_name) : full_name_(full_name) {}

  // One request, one answer. `start` returns the handler.
  template <typename Request, typename Response>
  void ServeUnary(absl::string_view method,
                  std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*,
                                                          const Request*, Response*)>
                      start,
                  OnUnparsed on_unparsed = nullptr) {
    using Reactor = grpc::ServerUnaryReactor;
    using Handler = grpc::internal::CallbackUnaryHandler<Received<Request>, Response>;
    Replace(method, std::make_unique<Handler>(
                        [start = std::move(start), on_unparsed = std::move(on_unparsed)](
                            grpc::CallbackServerContext* context, const Received<Request>* request,
                            Response* response) -> Reactor* {
                          if (request->parses) return start(context, &request->message, response);
                          return AnswerUnparsed<Reactor>(*request, on_unparsed, context);
                        }));
  }
  // One request, a stream of answers.
  template <typename Request, typename Response>
  void ServeServerStream(absl::string_view method,
                         std::function<grpc::ServerWriteReactor<Response>*(
                             grpc::CallbackServerContext*, const Request*)>
                             start,
                         OnUnparsed on_unparsed = nullptr) {
    using Reactor = grpc::ServerWriteReactor<Response>;
    using Handler = grpc::internal::CallbackServerStreamingHandler<Received<Request>, Response>;
    Replace(method, std::make_unique<Handler>(
                        [start = std::move(start), on_unparsed = std::move(on_unparsed)](
                            grpc::CallbackServerContext* context,
                            const Received<Request>* request) -> Reactor* {
                          if (request->parses) return start(context, &request->message);
                          return AnswerUnparsed<Reactor>(*request, on_unparsed, context);
                        }));
  }
  // Streams both ways; the handler, a BidiHandler<Received<Request>, Response>, sees what does not
  // parse.
  template <typename Request, typename Response>
  void ServeBidi(absl::string_view method,
                 std::function<grpc::ServerBidiReactor<Received<Request>, Response>*(
                     grpc::CallbackServerContext*)>
                     start) {
    using Handler = grpc::internal::CallbackBidiHandler<Received<Request>, Response>;
    Replace(method, std::make_unique<Handler>(std::move(start)));
  }

 private:
  template <typename Reactor>
  class Refusal final : public Handler<Reactor> {
   public:
    Refusal(absl::Status why, OnUnparsed on_unparsed, grpc::CallbackServerContext* context)
        : Handler<Reactor>(context), why_(std::move(why)), on_unparsed_(std::move(on_unparsed)) {}

   private:
    void Start() override { this->Finish(why_); }
    void OnClosed(const absl::Status& status) override {
      if (on_unparsed_) on_unparsed_(this->scope(), this->AsClientGot(status));
    }
    const absl::Status why_;
    const OnUnparsed on_unparsed_;
  };

  template <typename Reactor, typename Request>
  static Reactor* AnswerUnparsed(const Received<Request>& received, const OnUnparsed& on_unparsed,
                                 grpc::CallbackServerContext* context) {
    return StartHandler<Refusal<Reactor>>(
        received.came ? DoesNotParse<Request>() : DidNotCome<Request>(), on_unparsed, context);
  }

  // gRPC numbers methods in the order of the .proto file.
  void Replace(absl::string_view method, std::unique_ptr<grpc::internal::MethodHandler> handler) {
    const auto* const descriptor =
        grpc::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
            absl::StrCat(full_name_, ".", method));
    LOCKSTEP_CHECK(descriptor != nullptr);
    this->MarkMethodCallback(descriptor->index(), handler.release());
  }

  const std::string full_name_;
};

}  // namespace lockstep::rpc
