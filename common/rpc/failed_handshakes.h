#pragma once

#include <cstdint>

namespace lockstep::rpc {

// gRPC tells nobody of a TLS handshake that fails but its log. From the first call on, the whole
// process's gRPC log goes through here, to stderr as before, and such lines are counted.
// Thread-safe.
void CountFailedHandshakes();

// Those of this process since then, as server and as client.
int64_t FailedHandshakes();

}  // namespace lockstep::rpc
