#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/channel_pool.h"
#include "grpcpp/channel.h"
#include "lockstep/v1/rollout.grpc.pb.h"

namespace lockstep::client {

// A cluster, seen from its gateway. Calls block until the answer is there. Thread-safe.
//
//   client::RolloutClient cluster({.target = "127.0.0.1:7100"});
//   v1::GenerateRequest request;
//   request.set_prompt_text("12+34*2=");
//   LOCKSTEP_ASSIGN_OR_RETURN(const auto response, cluster.Generate(request));
class RolloutClient {
 public:
  struct Options {
    std::string target;  // host:port of a gateway, or a gRPC name.
    // For each call, the continuation of partial samples included.
    absl::Duration timeout = absl::Minutes(10);
    // For so long a unary call that found no gateway, or lost it, is made again (retry.h). TLS that
    // cannot come about (unreached.h) ends the call at once, unless a gateway answered this client
    // before: then its settings are right, and another address may serve.
    absl::Duration retry = absl::Seconds(5);
    // How the gateway is reached; calls are spread over the addresses of its name.
    rpc::ChannelOptions channel = {.message_bytes_max = size_t{1} << 30, .round_robin = true};
  };
  explicit RolloutClient(Options options);

  // Samples that a draining gateway gave back unfinished are continued, with the next gateway
  // behind the name, until they end by themselves. Where that one serves another contract or other
  // weights, nothing is mixed: the request is made again, whole. Tokens that were handed over are
  // never lost: a continuation that ends early, or fails for good, gives back the sample as it was,
  // aborted or (with the failure as its error) partial.
  absl::StatusOr<v1::GenerateResponse> Generate(const v1::GenerateRequest& request);
  // `on_delta` sees each delta as it comes, on the calling thread. Partial samples stay partial.
  absl::Status GenerateStream(const v1::GenerateRequest& request,
                              const std::function<void(const v1::GenerateDelta&)>& on_delta);
  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::FlushCacheResponse> FlushCache();
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo();

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const Options& options() const { return options_; }
  // Whether any call was answered.
  bool answered() const { return answered_.load(std::memory_order_relaxed); }

 private:
  // Makes one unary call, again where Options::retry says so.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::RolloutService::Stub::*method)(
                                    grpc::ClientContext*, const Request&, Response*),
                                const Request& request, absl::Time deadline);

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::RolloutService::Stub> stub_;
  std::atomic<bool> answered_ = false;
};

}  // namespace lockstep::client
