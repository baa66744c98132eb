#include "services/client/metrics_page.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "httplib.h"

namespace lockstep::client {
namespace {

constexpr int kUnauthorized = 401;

}  // namespace

absl::StatusOr<MetricsPage> MetricsPage::Fetch(const std::string& address,
                                               const MetricsAccess& access) {
  absl::string_view host_port = address;
  const bool tls = absl::ConsumePrefix(&host_port, "https://");
  const std::string url = absl::StrCat(tls ? "https://" : "http://", host_port, "/metrics");
  if (tls && access.authorities.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(url, ": needs authorities to trust"));
  }
  const size_t colon = std::min(host_port.rfind(':'), host_port.size());
  const std::string host(host_port.substr(0, colon));
  const bool named = tls && !access.peer_name.empty();
  httplib::Client http(absl::StrCat(tls ? "https://" : "http://", named ? access.peer_name : host,
                                    host_port.substr(colon)));
  if (named) http.set_hostname_addr_map({{access.peer_name, host}});
  if (tls) http.set_ca_cert_path(access.authorities);
  if (!access.bearer_token.empty()) http.set_bearer_token_auth(access.bearer_token);
  const auto wait = absl::ToChronoMicroseconds(access.timeout);
  http.set_connection_timeout(wait);
  http.set_read_timeout(wait);
  const httplib::Result result = http.Get("/metrics");
  if (!result) {
    return absl::UnavailableError(
        absl::StrCat("no metrics at ", url, ": ", httplib::to_string(result.error())));
  }
  if (result->status == kUnauthorized) {
    return absl::UnauthenticatedError(absl::StrCat(url, " needs the token of a scraper"));
  }
  if (result->status != 200) {
    return absl::UnavailableError(absl::StrCat(url, " answers ", result->status));
  }
  return Parse(result->body);
}

MetricsPage MetricsPage::Parse(std::string_view text) {
  MetricsPage page;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      continue;
    }
    page.series_[std::string(line.substr(0, space))] = value;
  }
  return page;
}

double MetricsPage::Sum(std::string_view name) const {
  double sum = 0;
  for (auto it = series_.lower_bound(name); it != series_.end(); ++it) {
    const std::string& series = it->first;
    if (series.compare(0, name.size(), name) != 0) break;
    if (series.size() == name.size() || series[name.size()] == '{') sum += it->second;
  }
  return sum;
}

double MetricsPage::CountAbove(std::string_view histogram, double bound) const {
  const std::string name(histogram);
  double at_most = 0;
  const std::string prefix = name + "_bucket{";
  for (auto it = series_.lower_bound(prefix); it != series_.end(); ++it) {
    if (it->first.compare(0, prefix.size(), prefix) != 0) break;
    const size_t begin = it->first.find("le=\"");
    double le = 0;
    if (begin == std::string::npos || it->first.compare(begin + 4, 4, "+Inf") == 0) continue;
    const size_t end = it->first.find('"', begin + 4);
    if (absl::SimpleAtod(it->first.substr(begin + 4, end - begin - 4), &le) && le == bound) {
      at_most += it->second;
    }
  }
  return Sum(name + "_count") - at_most;
}

}  // namespace lockstep::client
