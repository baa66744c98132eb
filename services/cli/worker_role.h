#pragma once

#include "absl/status/status.h"
#include "services/cli/flags.h"
#include "services/worker/worker_hooks.h"

namespace lockstep::cli {

// The verb `worker`, with what a test plants in it. Returns after a drain; when the engine fails or
// hangs, the process ends here.
absl::Status ServeWorker(const Arguments& arguments, const worker::WorkerHooks& hooks);

}  // namespace lockstep::cli
