#pragma once

#include "common/metrics/metric.h"
#include "common/metrics/registry.h"

namespace lockstep::service {

enum class CertificateFile { kCertificate, kAuthorities };

// Of the files of a process of any role. Only with TLS: a gauge without a certificate would be
// an end that is long past.
struct CertificateMetrics {
  explicit CertificateMetrics(metrics::Registry* registry)
      : end_seconds(
            registry, "lockstep_process_certificate_end_seconds",
            "When the first certificate of a file of server.tls ends, as the file says now, in "
            "seconds since 1970. Absent with plaintext.",
            "file", {"certificate", "authorities"}) {}
  metrics::GaugeBy<CertificateFile> end_seconds;
};

}  // namespace lockstep::service
