#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep::client {

// One scrape of a Prometheus endpoint. A value.
class MetricsPage {
 public:
  // Reads http://<address>/metrics; UNAVAILABLE when nobody answers there.
  static absl::StatusOr<MetricsPage> Fetch(const std::string& address,
                                           absl::Duration timeout = absl::Seconds(5));
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
