#pragma once

#include "tests/process/member_cluster.h"
#include "tests/process/stream_record.h"

namespace lockstep::testing {

// Ends the load. Whatever was lost meanwhile, no answer failed or differs, one at least went on
// elsewhere, and no stream waited longer than a lease and a second. Prints and records what it saw.
void ExpectLossless(StreamLoad* load, const MemberCluster& cluster);

}  // namespace lockstep::testing
