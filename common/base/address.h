#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Addresses as configurations and command lines write them: the one place that says what is one.
namespace lockstep::base {

struct HostPort {
  std::string host;  // An IPv6 address without its brackets.
  int port = 0;      // [0, 65535].
};

// Of "host:port", whose host is a name, an IPv4 address, or an IPv6 address in brackets.
// INVALID_ARGUMENT says what was expected.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// INVALID_ARGUMENT names `field` where nothing can listen on `address`. Port 0 takes a free one.
absl::Status CheckListenAddress(absl::string_view field, absl::string_view address);

// INVALID_ARGUMENT names `field` where `target` is neither host:port nor a gRPC name (dns:, ipv4:,
// ipv6:, unix:; a host alone after dns: means port 443): gRPC would take another port, or say so in
// words of its own, and only when it is called.
absl::Status CheckTarget(absl::string_view field, absl::string_view target);

}  // namespace lockstep::base
