#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/registry.h"

namespace prometheus {
class Exposer;
}

namespace lockstep::metrics {

// Serves a registry as http://<address>/metrics for Prometheus, with two threads of its own.
// Destruction takes up to two seconds, the poll interval of the HTTP server inside prometheus-cpp.
class Exposer {
  struct Private {};

 public:
  // `address` is "host:port" or "port"; port 0 takes a free one, which port() tells.
  // kFailedPrecondition when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const std::string& address,
                                                        const Registry& registry);
  // For Start().
  Exposer(Private, std::unique_ptr<prometheus::Exposer> exposer, int port);
  ~Exposer();

  int port() const { return port_; }

 private:
  const std::unique_ptr<prometheus::Exposer> exposer_;
  const int port_;
};

}  // namespace lockstep::metrics
