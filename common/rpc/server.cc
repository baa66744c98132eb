#include "common/rpc/server.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/rpc/callback_threads.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace lockstep::rpc {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

void SetArguments(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
  // An answer that gRPC refuses to send would leave the call without any status.
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds(options.ping_interval_min));
  if (options.connection_age_max != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                Milliseconds(options.connection_age_max));
  }
  if (options.connection_age_grace != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                Milliseconds(options.connection_age_grace));
  }
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const ServerOptions& options) {
  if (options.security == nullptr) return grpc::InsecureServerCredentials();
  auto credentials = options.security->ServerCredentials(options.client_certificates);
  credentials->SetAuthMetadataProcessor(
      std::make_shared<AccessControl>(options.access, options.tokens, options.on_refused));
  return credentials;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options,
                                                      const std::vector<grpc::Service*>& services) {
  LOCKSTEP_RETURN_IF_ERROR(base::CheckListenAddress("address", options.address));
  HoldCallbackThreads();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetArguments(options, &builder);
  int port = 0;
  builder.AddListeningPort(options.address, CredentialsOf(options), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto unknown_methods = std::make_unique<UnknownMethods>();
  builder.RegisterCallbackGenericService(unknown_methods.get());
  std::unique_ptr<grpc::Server> grpc_server = builder.BuildAndStart();
  if (grpc_server == nullptr || port == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", options.address,
                     ": the port is in use, or the address is not one of this machine"));
  }
  return std::make_unique<Server>(Private{}, std::move(unknown_methods), std::move(grpc_server),
                                  std::move(options.on_ready), port);
}

Server::Server(Private, std::unique_ptr<UnknownMethods> unknown_methods,
               std::unique_ptr<grpc::Server> server, std::function<void(bool ready)> on_ready,
               int port)
    : unknown_methods_(std::move(unknown_methods)),
      server_(std::move(server)),
      health_(server_->GetHealthCheckService(), std::move(on_ready)),
      port_(port) {}

Server::~Server() { Shutdown(); }

void Server::Drain(absl::Time deadline) {
  health_.BeginDrain();
  // gRPC takes a time before 1970 for one that never comes.
  server_->Shutdown(absl::ToChronoTime(std::max(deadline, absl::UnixEpoch())));
}

void Server::Shutdown() { Drain(absl::InfinitePast()); }

}  // namespace lockstep::rpc
