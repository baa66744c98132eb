#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "common/log/sink.h"
#include "common/metrics/exposer.h"
#include "common/metrics/registry.h"
#include "common/rpc/bearer_tokens.h"
#include "common/rpc/https_identity.h"
#include "common/service/certificate_metrics.h"
#include "common/service/certificate_watch.h"
#include "common/service/process_metrics.h"
#include "common/service/server_settings.h"

namespace lockstep::service {

// What every role has around its core: clock, log, metrics and the endpoint that shows them. Made
// first and destroyed last.
class ServiceBase {
  struct Private {};

 public:
  // `name` is the role, as it stands in log lines, and what peers call its server. INVALID_ARGUMENT
  // when its certificate has another name, or tokens cannot be read; FAILED_PRECONDITION when the
  // metrics address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ServiceBase>> Create(const std::string& name,
                                                             ServerSettings settings);

  // For Create().
  ServiceBase(Private, const std::string& name, ServerSettings settings);
  ~ServiceBase();

  const ServerSettings& settings() const { return settings_; }
  const base::Clock* clock() const { return &clock_; }
  const log::Logger& logger() const { return logger_; }
  metrics::Registry* registry() { return &registry_; }
  // For the role's server, which this outlives and those may call that `access` names. Of calls
  // that it refuses the log says so now and then; whether it is ready is a metric.
  rpc::ServerOptions ServerOptions(std::vector<rpc::AccessRule> access);
  // Tokens of these roles, looked at again as often as all files; a look that fails is logged.
  absl::StatusOr<std::unique_ptr<rpc::BearerTokens>> ReadTokens(
      const std::string& directory, std::vector<std::string> roles) const;
  // Where others read metrics, host:port or https://host:port; empty without an endpoint.
  // `reached_at` is what peers call this process at, host:port or a gRPC name: its host stands in
  // where metrics are served at every address of the machine.
  std::string metrics_address(const std::string& reached_at = "") const;

 private:
  absl::Status WatchCertificate(const std::string& name,
                                const std::shared_ptr<const rpc::Security>& security);
  void CountHandshakes();
  absl::Status ExposeMetrics();

  const ServerSettings settings_;
  base::RealClock clock_;
  log::StderrSink sink_;
  const log::Logger logger_;
  metrics::Registry registry_;
  ProcessMetrics process_{&registry_};
  std::optional<CertificateMetrics> certificates_;
  std::shared_ptr<CertificateWatch> certificate_watch_;  // Null without TLS.
  base::Mutex handshakes_mutex_;
  int64_t handshakes_counted_ ABSL_GUARDED_BY(handshakes_mutex_) = 0;
  // Of the metrics endpoint; null where it needs none.
  std::unique_ptr<rpc::HttpsIdentity> identity_;
  std::unique_ptr<rpc::BearerTokens> scrapers_;
  std::unique_ptr<metrics::Exposer> exposer_;
};

}  // namespace lockstep::service
