#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "lockstep/v1/types.pb.h"

// The one place where absl::Status and the wire meet. Code, message and retry advice
// (base/retry_advice.h) survive both ways; other payloads stay inside the process.
namespace lockstep::rpc {

// Puts a serialised lockstep.v1.ErrorDetail into the grpc-status-details-bin trailer. Its first two
// fields are those of google.rpc.Status, so that standard tools read code and message from it.
grpc::Status ToGrpcStatus(const absl::Status& status);

// A code that gRPC does not define becomes kUnknown. A detail that does not parse is ignored.
absl::Status FromGrpcStatus(const grpc::Status& status);

// The same for errors inside messages: one item of a stream, one sequence of a frame.
v1::ErrorDetail ToErrorDetail(const absl::Status& status);
absl::Status FromErrorDetail(const v1::ErrorDetail& detail);

}  // namespace lockstep::rpc
