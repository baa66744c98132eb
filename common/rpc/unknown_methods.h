#pragma once

#include "grpcpp/generic/async_generic_service.h"

namespace lockstep::rpc {

// Answers what no service of a server has, for example a call of a newer client: UNIMPLEMENTED that
// names the method, with details like every other error. gRPC's own answer has none of both.
class UnknownMethods final : public grpc::CallbackGenericService {
 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
};

}  // namespace lockstep::rpc
