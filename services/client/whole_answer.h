#pragma once

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"

namespace lockstep::client {

// What to ask, one call after the other, until a request is answered whole: the request itself,
// then the continuation of each sample that a draining gateway gave back unfinished. Where a
// continuation is of another contract or other weights, nothing of the first answer is mixed with
// it: the request is asked again, from its beginning. Not thread-safe.
//
//   WholeAnswer answer(&request);
//   for (bool whole = false; !whole;) {
//     auto next = Ask(answer.next());
//     if (!next.ok()) return answer.Finish(next.status());
//     LOCKSTEP_ASSIGN_OR_RETURN(whole, answer.Take(*std::move(next)));
//   }
//   return answer.Finish();
class WholeAnswer {
 public:
  // `request` outlives this.
  explicit WholeAnswer(const v1::GenerateRequest* request) : request_(request) {}

  // What to send now. Stays valid until Take().
  const v1::GenerateRequest& next() const { return begun_ ? continuation_ : *request_; }
  // Takes the answer to next(); true when nothing is left to ask.
  absl::StatusOr<bool> Take(v1::GenerateResponse answer);
  // Hands over what there is, once nothing is left to ask, or once next() failed for good: then
  // samples that it would have continued, or would have come to later, stay partial, with `failed`
  // as their error; `failed` itself where nothing was answered. Of an answer that was cut short and
  // one that was given up for other weights before, the longer one.
  absl::StatusOr<v1::GenerateResponse> Finish(const absl::Status& failed = absl::OkStatus());

 private:
  // Sets the continuation of the first sample that needs one; true when none does.
  bool IsWhole();
  void Join(v1::Sample* continued);

  const v1::GenerateRequest* const request_;
  bool begun_ = false;
  int sample_ = 0;  // that is continued
  v1::GenerateRequest continuation_;
  v1::GenerateResponse response_;
  v1::GenerateResponse given_up_;  // Of another contract or other weights than response_.
};

// The request that continues one partial sample of `response`. Asks for the prompt's logprobs where
// the sample has to bring them and has not all of them yet.
v1::GenerateRequest ContinuationOf(const v1::GenerateRequest& request,
                                   const v1::GenerateResponse& response, const v1::Sample& partial);

}  // namespace lockstep::client
