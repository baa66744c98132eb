#include "common/rpc/deadline.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string_view>

namespace lockstep::rpc {
namespace {

constexpr size_t kTraceIdBytesMax = 128;

// gRPC ends the process over a header value with other bytes, and logs stay readable.
bool IsTraceId(std::string_view text) {
  return !text.empty() && text.size() <= kTraceIdBytesMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

CallScope ScopeOf(const grpc::ServerContextBase& context) {
  CallScope scope;
  // gRPC shows "no deadline" as the largest time point.
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    scope.deadline = absl::FromChrono(deadline);
  }
  const auto found = context.client_metadata().find(kTraceIdKey);
  if (found != context.client_metadata().end()) {
    const std::string_view value(found->second.data(), found->second.size());
    if (IsTraceId(value)) scope.trace_id = std::string(value);
  }
  return scope;
}

absl::Status CheckHasDeadline(const CallScope& scope) {
  if (scope.deadline != absl::InfiniteFuture()) return absl::OkStatus();
  return absl::InvalidArgumentError("calls inside the cluster need a deadline; this one has none");
}

absl::StatusOr<CallScope> ChildScope(const CallScope& scope, absl::Time now,
                                     base::DeadlineMargin margin) {
  if (scope.deadline == absl::InfiniteFuture()) return scope;
  const absl::Duration left = scope.deadline - now;
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError("the deadline passed before the call to the next hop");
  }
  CallScope child = scope;
  child.deadline = now + base::LeftForNextHop(left, margin);
  return child;
}

void ApplyScope(const CallScope& scope, grpc::ClientContext* context) {
  if (scope.deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(scope.deadline));
  }
  if (IsTraceId(scope.trace_id)) context->AddMetadata(kTraceIdKey, scope.trace_id);
}

}  // namespace lockstep::rpc
