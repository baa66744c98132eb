#include "common/base/address.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep::base {
namespace {

constexpr int kPortMax = 65535;
constexpr size_t kPortDigitsMax = 5;

bool IsHost(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

// With the zone of a link-local one, such as fe80::1%eth0.
bool IsIpv6(absl::string_view host) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(host, absl::MaxSplits('%', 1));
  const absl::string_view address = parts.first;
  return address.find(':') != address.npos &&
         std::all_of(address.begin(), address.end(), [](unsigned char c) {
           return absl::ascii_isxdigit(c) || c == ':' || c == '.';
         });
}

// gRPC takes a port above 65535 modulo 65536.
bool ParsePort(absl::string_view text, int* port) {
  return !text.empty() && text.size() <= kPortDigitsMax &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, port) && *port <= kPortMax;
}

bool IsTarget(absl::string_view address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  return parsed.ok() && parsed->port > 0;
}

// What follows a scheme: "//authority/" may stand before it.
absl::string_view WithoutAuthority(absl::string_view path) {
  if (!absl::ConsumePrefix(&path, "//")) return path;
  const size_t slash = path.find('/');
  return slash == path.npos ? absl::string_view() : path.substr(slash + 1);
}

bool IsGrpcName(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "unix:") || absl::ConsumePrefix(&name, "unix-abstract:")) {
    return !absl::StripPrefix(name, "//").empty();
  }
  if (absl::ConsumePrefix(&name, "dns:")) {
    const absl::string_view host = WithoutAuthority(name);
    return IsTarget(host) || IsHost(host);
  }
  if (!absl::ConsumePrefix(&name, "ipv4:") && !absl::ConsumePrefix(&name, "ipv6:")) return false;
  const std::vector<absl::string_view> addresses = absl::StrSplit(WithoutAuthority(name), ',');
  return std::all_of(addresses.begin(), addresses.end(), IsTarget);
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  HostPort parsed;
  if (colon != address.npos && ParsePort(address.substr(colon + 1), &parsed.port)) {
    absl::string_view host = address.substr(0, colon);
    const bool has_brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
    if (has_brackets ? IsIpv6(host) : IsHost(address.substr(0, colon))) {
      parsed.host = std::string(host);
      return parsed;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not host:port"));
}

absl::Status CheckListenAddress(absl::string_view field, absl::string_view address) {
  const absl::Status parsed = ParseHostPort(address).status();
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", parsed.message(),
                   "; expected what can be listened on, such as 0.0.0.0:7100 or [::]:7100, with a "
                   "port in [0, ",
                   kPortMax, "]"));
}

absl::Status CheckTarget(absl::string_view field, absl::string_view target) {
  if (IsTarget(target) || IsGrpcName(target)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": \"", target, "\" is not host:port, such as 127.0.0.1:7100, with a port in [1, ",
      kPortMax, "], nor a gRPC name, such as dns:///gateway.example:7100"));
}

}  // namespace lockstep::base
