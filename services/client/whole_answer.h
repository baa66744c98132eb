#pragma once

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"

namespace lockstep::client {

// What to ask, one call after the other, until a request is answered whole: the request itself,
// then the continuation of each sample that a draining gateway gave back unfinished. Where a
// continuation is of another contract or other weights, nothing of the first answer is used: the
// request is asked again, from its beginning. Not thread-safe.
//
//   WholeAnswer answer(&request);
//   while (!whole) LOCKSTEP_ASSIGN_OR_RETURN(whole, answer.Take(Ask(answer.next())));
class WholeAnswer {
 public:
  // `request` outlives this.
  explicit WholeAnswer(const v1::GenerateRequest* request) : request_(request) {}

  // What to send now. Stays valid until Take().
  const v1::GenerateRequest& next() const { return begun_ ? continuation_ : *request_; }
  // Takes the answer to next(); true when response() is whole.
  absl::StatusOr<bool> Take(v1::GenerateResponse answer);
  v1::GenerateResponse& response() { return response_; }

 private:
  // Sets the continuation of the first sample that needs one; true when none does.
  bool IsWhole();

  const v1::GenerateRequest* const request_;
  bool begun_ = false;
  int sample_ = 0;  // that is continued
  v1::GenerateRequest continuation_;
  v1::GenerateResponse response_;
};

// The request that continues one partial sample of `response`.
v1::GenerateRequest ContinuationOf(const v1::GenerateRequest& request,
                                   const v1::GenerateResponse& response, const v1::Sample& partial);

}  // namespace lockstep::client
