#include "common/rpc/port_check.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"

namespace lockstep::rpc {
namespace {

bool IsInUse(const addrinfo& candidate) {
  const int fd = socket(candidate.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  // As gRPC binds: connections that have ended do not hold the port.
  constexpr int kOn = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
  const bool in_use = bind(fd, candidate.ai_addr, candidate.ai_addrlen) != 0 && errno == EADDRINUSE;
  close(fd);
  return in_use;
}

}  // namespace

absl::Status CheckPortIsFree(const std::string& address) {
  LOCKSTEP_RETURN_IF_ERROR(base::CheckListenAddress("address", address));
  LOCKSTEP_ASSIGN_OR_RETURN(const base::HostPort wanted, base::ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(wanted.host.c_str(), absl::StrCat(wanted.port).c_str(), &hints, &found) != 0) {
    return absl::OkStatus();
  }
  // A name may have several addresses, of which a server takes those that it gets.
  bool in_use = true;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) in_use &= IsInUse(*one);
  freeaddrinfo(found);
  if (!in_use) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen on ", address, ": the port is in use"));
}

}  // namespace lockstep::rpc
