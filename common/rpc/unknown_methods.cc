#include "common/rpc/unknown_methods.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/handler.h"

namespace lockstep::rpc {
namespace {

class UnknownMethodHandler final : public Handler<grpc::ServerGenericBidiReactor> {
 public:
  explicit UnknownMethodHandler(grpc::GenericCallbackServerContext* context)
      : Handler(context), method_(context->method()) {}

 private:
  void Start() override {
    Finish(absl::UnimplementedError(absl::StrCat(method_, ": not a method of this server")));
  }

  const std::string method_;
};

}  // namespace

grpc::ServerGenericBidiReactor* UnknownMethods::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  return StartHandler<UnknownMethodHandler>(context);
}

}  // namespace lockstep::rpc
