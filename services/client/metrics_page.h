#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep::client {

// How an endpoint is reached; what follows `timeout` concerns https:// only.
struct MetricsAccess {
  absl::Duration timeout = absl::Seconds(5);
  std::string authorities;   // PEM file of those who may sign the server's certificate.
  std::string peer_name;     // The DNS name in it; empty: the address's.
  std::string bearer_token;  // Empty: none.
};

// One scrape of a Prometheus endpoint. A value.
class MetricsPage {
 public:
  // Reads /metrics at `address`: host:port, or https://host:port, whose host is an IP address where
  // a peer_name is given. UNAVAILABLE when nobody answers there, UNAUTHENTICATED when the token is
  // wrong, INVALID_ARGUMENT without authorities for https.
  static absl::StatusOr<MetricsPage> Fetch(const std::string& address,
                                           const MetricsAccess& access = {});
  // Lines of the text format; what is no sample is skipped.
  static MetricsPage Parse(std::string_view text);

  // Sum over the label values of a counter or gauge; 0 for a name that is not there.
  double Sum(std::string_view name) const;
  // Observations of a histogram that are greater than `bound`, which is one of its bounds.
  double CountAbove(std::string_view histogram, double bound) const;

 private:
  std::map<std::string, double, std::less<>> series_;  // By name and labels, as on the page.
};

}  // namespace lockstep::client
