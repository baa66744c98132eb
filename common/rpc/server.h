#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/access.h"
#include "common/rpc/bearer_tokens.h"
#include "common/rpc/health_board.h"
#include "common/rpc/security.h"
#include "common/rpc/unknown_methods.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

namespace lockstep::rpc {

struct ServerOptions {
  // "host:port"; port 0 takes a free one, which port() tells.
  std::string address;
  // Largest message that is accepted. Answers are bounded by the receiver's own limit.
  size_t message_bytes_max = size_t{64} << 20;
  absl::Duration keepalive_time = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // Pings that come faster than this from one client end its connection.
  absl::Duration ping_interval_min = absl::Seconds(10);
  // A connection older than this is told to reconnect, so that clients spread over new servers; its
  // calls get `connection_age_grace` to end. Infinite: never.
  absl::Duration connection_age_max = absl::InfiniteDuration();
  absl::Duration connection_age_grace = absl::InfiniteDuration();
  // Null: plaintext, and everybody who can connect may call everything.
  std::shared_ptr<const Security> security;
  // With `security` only.
  ClientCertificates client_certificates = ClientCertificates::kRequired;
  std::vector<AccessRule> access;
  std::shared_ptr<BearerTokens> tokens;
  OnRefused on_refused;
  // Told of the health name `ready`; see HealthBoard.
  std::function<void(bool ready)> on_ready;
};

// One gRPC server: services, grpc.health.v1 and reflection. Handlers run on gRPC's threads.
// Thread-safe.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.address = "[::]:7100"}, {&service_}));
//   server_->health().SetReady(true);
class Server {
  struct Private {};

 public:
  // `services` must outlive the server. kInvalidArgument for an address that cannot be read;
  // kFailedPrecondition when it cannot be listened on, for example because another process has the
  // port: ports are never shared.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options,
                                                       const std::vector<grpc::Service*>& services);
  // For Start().
  Server(Private, std::unique_ptr<UnknownMethods> unknown_methods,
         std::unique_ptr<grpc::Server> server, std::function<void(bool ready)> on_ready, int port);
  // Shuts down without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Not ready, no new calls; calls in flight may end until `deadline`, then they are cancelled.
  // Returns when all handlers are done, so never call it from one. A later call does nothing.
  void Drain(absl::Time deadline);
  // Drain without grace.
  void Shutdown();

  int port() const { return port_; }
  HealthBoard& health() { return health_; }

 private:
  const std::unique_ptr<UnknownMethods> unknown_methods_;  // Called by the server.
  const std::unique_ptr<grpc::Server> server_;
  HealthBoard health_;
  const int port_;
};

}  // namespace lockstep::rpc
