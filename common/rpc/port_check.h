#pragma once

#include <string>

#include "absl/status/status.h"

namespace lockstep::rpc {

// Whether the port of `address` (host:port) is in use, asked before long work that Server::Start()
// comes after: FAILED_PRECONDITION when it is, INVALID_ARGUMENT when `address` is none. What else
// stands against listening there, Start() says. Keeps nothing.
absl::Status CheckPortIsFree(const std::string& address);

}  // namespace lockstep::rpc
