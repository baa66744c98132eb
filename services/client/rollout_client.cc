#include "services/client/rollout_client.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/deadline.h"
#include "common/rpc/status_conversion.h"
#include "google/protobuf/util/message_differencer.h"
#include "services/client/arrays.h"
#include "services/client/unreached.h"

namespace lockstep::client {
namespace {

// Between tries of one call.
constexpr absl::Duration kRetryPauseFirst = absl::Milliseconds(50);
constexpr absl::Duration kRetryPauseLast = absl::Seconds(1);

// A gateway that drains refuses, and one that ends takes its connections with it; gRPC says
// CANCELLED of a call that reached it in between, and nobody here cancels.
bool AnotherMayServe(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

void Pause(absl::Duration duration) {
  base::Mutex mutex;
  base::CondVar pause;
  base::MutexLock lock(&mutex);
  pause.WaitFor(&mutex, duration);
}

// Whether what `sample` of `response` has so far, and what `next` adds to it, are of one contract
// and the same weights.
bool BelongTogether(const v1::GenerateResponse& response, const v1::Sample& sample,
                    const v1::GenerateResponse& next) {
  if (!google::protobuf::util::MessageDifferencer::Equals(response.fingerprint(),
                                                          next.fingerprint())) {
    return false;
  }
  const auto& before = sample.receipt().weights_digests();
  const auto& after = next.samples(0).receipt().weights_digests();
  return before.empty() || after.empty() || *before.rbegin() == *after.begin();
}

}  // namespace

RolloutClient::RolloutClient(Options options)
    : options_(std::move(options)),
      channel_(rpc::MakeChannel(options_.target, options_.channel)),
      stub_(v1::RolloutService::NewStub(channel_)) {}

template <typename Request, typename Response>
absl::StatusOr<Response> RolloutClient::Call(grpc::Status (v1::RolloutService::Stub::*method)(
                                                 grpc::ClientContext*, const Request&, Response*),
                                             const Request& request, absl::Time deadline) {
  absl::Duration pause = kRetryPauseFirst;
  const absl::Time begin = absl::Now();
  absl::Time give_up = absl::InfiniteFuture();
  for (int count = 1;; ++count) {
    grpc::ClientContext context;
    rpc::ApplyScope({.deadline = deadline}, &context);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (status.ok()) {
      answered_.store(true, std::memory_order_relaxed);
      return response;
    }
    const absl::Status failed = rpc::FromGrpcStatus(status);
    const absl::Time now = absl::Now();
    give_up = std::min({give_up, now + options_.retry, deadline});
    if (!AnotherMayServe(status) || now + pause > give_up || CannotHeal(failed)) {
      return WithAttempts(failed, options_.target, options_.channel,
                          {.count = count, .time = now - begin});
    }
    Pause(pause);
    pause = std::min(2 * pause, kRetryPauseLast);
  }
}

bool RolloutClient::CannotHeal(const absl::Status& status) const {
  return IsSetDifferently(status) && !answered_.load(std::memory_order_relaxed);
}

absl::StatusOr<v1::GenerateResponse> RolloutClient::Generate(const v1::GenerateRequest& request) {
  const absl::Time deadline = absl::Now() + options_.timeout;
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(v1::GenerateResponse response,
                              Call(&v1::RolloutService::Stub::Generate, request, deadline));
    LOCKSTEP_ASSIGN_OR_RETURN(const bool whole, Continue(request, deadline, &response));
    if (whole) return response;
  }
}

absl::StatusOr<bool> RolloutClient::Continue(const v1::GenerateRequest& request,
                                             absl::Time deadline, v1::GenerateResponse* response) {
  for (v1::Sample& sample : *response->mutable_samples()) {
    while (sample.finish_reason() == v1::FINISH_REASON_PARTIAL) {
      // The gateway that gave the sample back is about to end, and refuses this; others do not.
      LOCKSTEP_ASSIGN_OR_RETURN(v1::GenerateResponse next,
                                Call(&v1::RolloutService::Stub::Generate,
                                     ContinuationOf(request, *response, sample), deadline));
      if (next.samples_size() != 1) return absl::InternalError("a continuation has no sample");
      if (!BelongTogether(*response, sample, next)) return false;
      v1::Sample* continued = next.mutable_samples(0);
      continued->mutable_prompt_logprobs()->Swap(sample.mutable_prompt_logprobs());
      sample.Swap(continued);
    }
  }
  return true;
}

absl::Status RolloutClient::GenerateStream(
    const v1::GenerateRequest& request,
    const std::function<void(const v1::GenerateDelta&)>& on_delta) {
  grpc::ClientContext context;
  const absl::Time begin = absl::Now();
  rpc::ApplyScope({.deadline = begin + options_.timeout}, &context);
  const auto reader = stub_->GenerateStream(&context, request);
  v1::GenerateDelta delta;
  while (reader->Read(&delta)) on_delta(delta);
  return WithAttempts(rpc::FromGrpcStatus(reader->Finish()), options_.target, options_.channel,
                      {.time = absl::Now() - begin});
}

absl::StatusOr<v1::ScoreResponse> RolloutClient::Score(const v1::ScoreRequest& request) {
  return Call(&v1::RolloutService::Stub::Score, request, absl::Now() + options_.timeout);
}

absl::StatusOr<v1::TokenizeResponse> RolloutClient::Tokenize(const v1::TokenizeRequest& request) {
  return Call(&v1::RolloutService::Stub::Tokenize, request, absl::Now() + options_.timeout);
}

absl::StatusOr<v1::DetokenizeResponse> RolloutClient::Detokenize(
    const v1::DetokenizeRequest& request) {
  return Call(&v1::RolloutService::Stub::Detokenize, request, absl::Now() + options_.timeout);
}

absl::StatusOr<v1::FlushCacheResponse> RolloutClient::FlushCache() {
  return Call(&v1::RolloutService::Stub::FlushCache, v1::FlushCacheRequest(),
              absl::Now() + options_.timeout);
}

absl::StatusOr<v1::GetServerInfoResponse> RolloutClient::GetServerInfo() {
  return Call(&v1::RolloutService::Stub::GetServerInfo, v1::GetServerInfoRequest(),
              absl::Now() + options_.timeout);
}

v1::GenerateRequest ContinuationOf(const v1::GenerateRequest& request,
                                   const v1::GenerateResponse& response,
                                   const v1::Sample& partial) {
  v1::GenerateRequest next = request;
  next.clear_request_id();
  next.clear_n();
  next.set_first_sample_index(partial.index());
  next.set_exact_seed(partial.sub_seed());
  // The prompt as it was used, so that text is not tokenised a second time. Its logprobs are in the
  // first answer already.
  *next.mutable_prompt_ids()->mutable_ids() = ToIdField(ReadIds(response.prompt_ids()));
  next.mutable_logprobs()->clear_prompt_from();
  *next.mutable_generated_ids() = ToIdField(ReadIds(partial.token_ids()));
  return next;
}

}  // namespace lockstep::client
