#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline_margin.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"

namespace lockstep::rpc {

// What one hop hands to the next beside the message: until when the answer is of use, and the name
// under which every hop logs. A value; pass it along with the work.
struct CallScope {
  absl::Time deadline = absl::InfiniteFuture();
  std::string trace_id;
};

inline constexpr char kTraceIdKey[] = "lockstep-trace-id";

// Deadline and trace id of a call being served. Reads the context, so call it before the call ends.
CallScope ScopeOf(const grpc::ServerContextBase& context);

// INVALID_ARGUMENT when a call inside the cluster came without a deadline; only health, reflection
// and watches are exempt.
absl::Status CheckHasDeadline(const CallScope& scope);

// The scope for a call to the next hop: the deadline moved forward by the margin.
// DEADLINE_EXCEEDED when nothing is left at `now`.
absl::StatusOr<CallScope> ChildScope(const CallScope& scope, absl::Time now,
                                     base::DeadlineMargin margin = {});

// Sets deadline and trace id of a call about to be made.
void ApplyScope(const CallScope& scope, grpc::ClientContext* context);

}  // namespace lockstep::rpc
