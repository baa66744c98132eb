#include "common/rpc/callback_threads.h"

#include <algorithm>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "grpc/support/cpu.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/channel_arguments.h"

namespace lockstep::rpc {
namespace {

// As gRPC 1.51 counts them (src/cpp/common/completion_queue_cc.cc).
int StartedThreads() { return std::clamp<int>(gpr_cpu_num_cores() / 2, 2, 16); }

// A call whose end holds the callback thread that it is told on, for ever. Nothing of it is ever
// freed, since the thread may be on it until the process has gone.
class ParkedCall final : public grpc::ClientUnaryReactor {
 public:
  // Returns when one more thread is held.
  static void Start(grpc::Server* server) {
    ParkedCall* const call = std::make_unique<ParkedCall>(server).release();
    // Fails where another gRPC starts fewer threads than StartedThreads() says.
    LOCKSTEP_CHECK(call->parked_.WaitForNotificationWithTimeout(absl::Seconds(10)))
        << "no callback thread of gRPC is free to sleep";
  }
  explicit ParkedCall(grpc::Server* server)
      : stub_(server->InProcessChannel(grpc::ChannelArguments())) {
    const grpc::Slice nothing;
    request_ = grpc::ByteBuffer(&nothing, 1);  // A default one is no message.
    context_.set_deadline(gpr_inf_past(GPR_CLOCK_REALTIME));
    stub_.PrepareUnaryCall(&context_, "/lockstep/Park", {}, &request_, &response_, this);
    StartCall();
  }

 private:
  void OnDone(const grpc::Status& /*status*/) override {
    parked_.Notify();
    absl::Notification never;
    never.WaitForNotification();
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  absl::Notification parked_;
};

grpc::Server* StartHolder() {
  // A server that listens nowhere is the smallest thing that holds the threads. Never destroyed:
  // there is no moment at which no callback can run any more.
  grpc::CallbackGenericService* const service =
      std::make_unique<grpc::CallbackGenericService>().release();
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(service);
  grpc::Server* const holder = builder.BuildAndStart().release();
  LOCKSTEP_CHECK(holder != nullptr) << "gRPC cannot start";
  for (int awake = StartedThreads(); awake > CallbackThreads(); --awake) ParkedCall::Start(holder);
  return holder;
}

}  // namespace

int CallbackThreads() { return std::max(1, StartedThreads() / 2); }

void HoldCallbackThreads() {
  static grpc::Server* const holder = [] {
    // Before gRPC takes its first lock.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return StartHolder();
  }();
  LOCKSTEP_CHECK(holder != nullptr);
}

}  // namespace lockstep::rpc
