#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/collective.h"

namespace lockstep::kernels {

// A group whose ranks are threads of one process and whose memory is the host's. An op waits for
// the slowest rank, `patience` at most; then the group is abandoned with DEADLINE_EXCEEDED, which
// names the ranks that did not come. INVALID_ARGUMENT unless `ranks` is a power of two.
absl::StatusOr<std::unique_ptr<CollectiveGroup>> CreateInProcessGroup(int ranks,
                                                                      absl::Duration patience);

}  // namespace lockstep::kernels
