#pragma once

#include "common/metrics/metric.h"
#include "common/metrics/registry.h"

namespace lockstep::service {

enum class CertificateFile { kCertificate, kAuthorities };

// Of TLS in a process of any role, and only where there is some: a gauge without a certificate
// would be an end that is long past.
struct CertificateMetrics {
  explicit CertificateMetrics(metrics::Registry* registry)
      : end_seconds(
            registry, "lockstep_process_certificate_end_seconds",
            "When the first certificate of a file of server.tls ends, as the file says now, in "
            "seconds since 1970. Absent with plaintext.",
            "file", {"certificate", "authorities"}),
        handshakes_failed(
            registry, "lockstep_process_tls_handshakes_failed_total",
            "TLS handshakes of gRPC that failed, as server or as client: a certificate of another "
            "authority, or a peer that speaks no TLS. Absent with plaintext.") {}
  metrics::GaugeBy<CertificateFile> end_seconds;
  metrics::Counter handshakes_failed;
};

}  // namespace lockstep::service
