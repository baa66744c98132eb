#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/metrics/registry.h"

struct ssl_ctx_st;

namespace lockstep::metrics {

class BoundedServer;

// Serves a registry at /metrics for Prometheus, by HTTP or HTTPS, with nine threads of its own:
// one listens, eight answer, each for at most five seconds a connection. Not prometheus-cpp's own
// server, whose end takes up to two seconds, and which knows neither TLS nor bearer tokens.
class Exposer {
  struct Private {};

 public:
  struct Options {
    // "host:port"; port 0 takes a free one, which port() tells.
    std::string address;
    // Makes it HTTPS: gives a certificate to what OpenSSL handshakes with. Empty: plaintext.
    std::function<void(ssl_ctx_st* context)> identify;
    // Whether who sends this bearer token, empty for none, may see metrics; others get 401. Called
    // on the answering threads. Empty: everybody may.
    std::function<bool(const std::string& token)> admits;
  };
  // kInvalidArgument when it is no address, kFailedPrecondition when it cannot be listened on.
  // `registry` outlives this.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const Options& options,
                                                        const Registry& registry);
  // For Start().
  Exposer(Private, std::unique_ptr<BoundedServer> server, int port);
  // Lets answers in work end; what has not asked yet is not waited for.
  ~Exposer();

  int port() const { return port_; }

 private:
  const std::unique_ptr<BoundedServer> server_;
  const int port_;
  std::thread listener_;
};

}  // namespace lockstep::metrics
