#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/channel_pool.h"

namespace lockstep::client {

// What was done before a call was given up.
struct Attempts {
  int count = 1;
  absl::Duration time;
};

// Whether no connection came about because server and client are set differently: one of them
// without TLS, or a certificate that the client cannot accept. Read from gRPC's words; other
// causes, and those that may be a gateway's end as well, are false.
bool IsSetDifferently(const absl::Status& status);

// For a call that no gateway answered (UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED): the same status,
// which also says who was asked, how often and for how long, and what TLS may have to do with it.
// Any other is returned as it is.
absl::Status WithAttempts(const absl::Status& status, const std::string& target,
                          const rpc::ChannelOptions& channel, const Attempts& attempts);

}  // namespace lockstep::client
