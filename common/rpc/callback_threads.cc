#include "common/rpc/callback_threads.h"

#include <memory>

#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace lockstep::rpc {

void HoldCallbackThreads() {
  // A server that listens nowhere is the smallest thing that holds the threads. Never destroyed:
  // there is no moment at which no callback can run any more.
  static grpc::CallbackGenericService* const service =
      std::make_unique<grpc::CallbackGenericService>().release();
  static grpc::Server* const holder = [] {
    // Before gRPC takes its first lock.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(service);
    return builder.BuildAndStart().release();
  }();
  LOCKSTEP_CHECK(holder != nullptr) << "gRPC cannot start";
}

}  // namespace lockstep::rpc
