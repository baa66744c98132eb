#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace lockstep::rpc {

// Runs `then` once, on one of gRPC's threads, when `duration` has passed. It must not block.
void RunAfter(absl::Duration duration, absl::AnyInvocable<void()> then);

}  // namespace lockstep::rpc
