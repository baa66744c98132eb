#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/metrics/registry.h"

namespace httplib {
class Server;
}

namespace lockstep::metrics {

// Serves a registry as http://<address>/metrics for Prometheus, with three threads of its own: one
// listens, two answer. Not prometheus-cpp's own server, whose end takes up to two seconds.
class Exposer {
  struct Private {};

 public:
  // `address` is "host:port" or "port"; port 0 takes a free one, which port() tells.
  // kFailedPrecondition when it cannot be listened on. `registry` outlives this.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const std::string& address,
                                                        const Registry& registry);
  // For Start().
  Exposer(Private, std::unique_ptr<httplib::Server> server, int port);
  // Lets requests in work end.
  ~Exposer();

  int port() const { return port_; }

 private:
  const std::unique_ptr<httplib::Server> server_;
  const int port_;
  std::thread listener_;
};

}  // namespace lockstep::metrics
