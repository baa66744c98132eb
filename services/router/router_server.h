#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lockstep/config/v1/config.pb.h"

namespace lockstep::router {

// One router: its RPC server, its streams to the scheduler and to workers, and the core between
// them. Thread-safe.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(auto server, RouterServer::Start(config));
//   … SIGTERM …
//   server->Drain(clock.Now() + server->drain_finish());
class RouterServer {
  class Impl;
  struct Private {};

 public:
  // INVALID_ARGUMENT: the configuration. FAILED_PRECONDITION: an address cannot be listened on. The
  // scheduler need not be there yet.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(
      const config::v1::RouterConfig& config);
  // For Start().
  RouterServer(Private, std::unique_ptr<Impl> impl);
  // Shuts down without grace.
  ~RouterServer();

  int port() const;
  // host:port of the metrics; empty without an endpoint.
  std::string metrics_address() const;
  absl::Duration drain_finish() const;
  // Not ready, no new streams; a gateway that opens more is sent elsewhere; what runs may end until
  // `deadline`, then its gateways lose their streams and go on elsewhere. Returns when all is over.
  void Drain(absl::Time deadline);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::router
