#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace lockstep::rpc {

// Asks the process behind `channel` whether it is healthy under `name` (see HealthBoard). False
// when it says that it is not; kNotFound when it does not know the name; kUnavailable or
// kDeadlineExceeded when it does not answer within `timeout`. Blocks, so it is for command lines
// and tests, not for handlers.
absl::StatusOr<bool> CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                                 const std::string& name, absl::Duration timeout);

}  // namespace lockstep::rpc
