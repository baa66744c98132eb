#include "services/client/rollout_client.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/deadline.h"
#include "common/rpc/status_conversion.h"
#include "services/client/retry.h"
#include "services/client/unreached.h"
#include "services/client/whole_answer.h"

namespace lockstep::client {
namespace {

void Pause(absl::Duration duration) {
  base::Mutex mutex;
  base::CondVar pause;
  base::MutexLock lock(&mutex);
  pause.WaitFor(&mutex, duration);
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
  Retry retry(options_.retry, absl::Now(), deadline);
  while (true) {
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
    const auto pause =
        retry.PauseAfter({.status = failed, .now = now, .answered_before = answered()});
    if (!pause.has_value()) {
      return WithAttempts(failed, options_.target, options_.channel, retry.attempts(now));
    }
    Pause(*pause);
  }
}

absl::StatusOr<v1::GenerateResponse> RolloutClient::Generate(const v1::GenerateRequest& request) {
  const absl::Time deadline = absl::Now() + options_.timeout;
  WholeAnswer answer(&request);
  for (bool whole = false; !whole;) {
    absl::StatusOr<v1::GenerateResponse> response =
        Call(&v1::RolloutService::Stub::Generate, answer.next(), deadline);
    if (!response.ok()) return answer.Finish(response.status());
    LOCKSTEP_ASSIGN_OR_RETURN(whole, answer.Take(*std::move(response)));
  }
  return answer.Finish();
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

}  // namespace lockstep::client
