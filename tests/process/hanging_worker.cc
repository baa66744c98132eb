// The verb `worker` on a device that hangs for good once the process gets SIGUSR1. It is given up
// after seconds, so that a test need not wait a minute. Usage: hanging_worker worker --config=FILE
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "absl/time/time.h"
#include "services/cli/worker_role.h"
#include "tests/support/hanging_executor.h"

namespace {

constexpr absl::Duration kHangPatience = absl::Seconds(4);
std::atomic<bool> hangs = false;

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  signal(SIGUSR1, [](int) { hangs = true; });
  const absl::Status status = lockstep::cli::ServeWorker(
      {argv + 2, argv + argc},
      {.wrap_executor =
           lockstep::faults::WrapExecutorIn<lockstep::testing::HangingExecutor>(&hangs),
       .hang_patience = kHangPatience});
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
