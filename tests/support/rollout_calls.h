#pragma once

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/call_unary.h"
#include "common/rpc/status_conversion.h"
#include "lockstep/v1/rollout.grpc.pb.h"

namespace lockstep::testing {

using RolloutStub = v1::RolloutService::StubInterface;

// Generate calls that run at the same time. Thread-safe.
class GenerateCalls {
 public:
  explicit GenerateCalls(RolloutStub* stub) : stub_(stub), state_(std::make_shared<State>()) {}

  void Start(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(120));
  // Ends the n-th call from the client's side.
  void Cancel(size_t index) { handles_[index].Cancel(); }
  // Waits for all; answers in order of Start.
  std::vector<absl::StatusOr<v1::GenerateResponse>> Wait();
  size_t finished_count() const;

 private:
  struct State {
    base::Mutex mutex;
    base::CondVar changed;
    std::vector<absl::StatusOr<v1::GenerateResponse>> answers ABSL_GUARDED_BY(mutex);
    size_t finished ABSL_GUARDED_BY(mutex) = 0;
  };
  RolloutStub* const stub_;
  const std::shared_ptr<State> state_;  // Outlives this object in calls that are never waited for.
  std::vector<rpc::CallHandle> handles_;
};

// All of them at once.
std::vector<absl::StatusOr<v1::GenerateResponse>> GenerateAll(
    RolloutStub* stub, const std::vector<v1::GenerateRequest>& requests);
// One after the other, without the prefix cache: what every other run must equal.
std::vector<absl::StatusOr<v1::GenerateResponse>> GenerateQuietly(
    RolloutStub* stub, const std::vector<v1::GenerateRequest>& requests);

// What one GenerateMany stream brought. Parts of one answer are one again.
struct ManyAnswers {
  std::map<std::string, v1::GenerateManyResponse> by_id;
  std::vector<v1::ErrorDetail> errors;  // Not in by_id.
  grpc::Status status;
};
// Writes all messages, half-closes, reads every answer.
ManyAnswers GenerateManyNow(RolloutStub* stub,
                            const std::vector<v1::GenerateManyRequest>& messages);

// Any unary call, waited for.
template <typename Request, typename Response>
absl::StatusOr<Response> CallNow(RolloutStub* stub,
                                 grpc::Status (RolloutStub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                                 const std::type_identity_t<Request>& request) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(120)));
  Response response;
  const grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) return rpc::FromGrpcStatus(status);
  return response;
}

// Everything of a sample that must never change: all but usage.
std::string Bits(const v1::Sample& sample);
std::string Bits(const v1::GenerateResponse& response);

}  // namespace lockstep::testing
