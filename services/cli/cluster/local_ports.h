#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::cli {

// FAILED_PRECONDITION names the first of `ports` on which a process of this machine listens.
absl::Status CheckPortsFree(const std::vector<int>& ports);

// `count` ports of the loopback that are free now, outside the range from which the system takes
// the ports of outgoing connections: one of those might get them before a server does.
absl::StatusOr<std::vector<int>> FreePorts(int count);

}  // namespace lockstep::cli
