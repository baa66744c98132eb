#pragma once

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/cluster_view.h"
#include "services/gateway/request_starter.h"

// What the gateway answers by itself: text, estimates, facts.
namespace lockstep::gateway {

absl::StatusOr<v1::TokenizeResponse> AnswerTokenize(const text::Tokenizer* tokenizer,
                                                    const ClusterView& cluster,
                                                    const v1::TokenizeRequest& request);
absl::StatusOr<v1::DetokenizeResponse> AnswerDetokenize(
    const std::shared_ptr<const text::Tokenizer>& tokenizer, const ClusterView& cluster,
    const v1::DetokenizeRequest& request);
absl::StatusOr<v1::EstimateResponse> AnswerEstimate(const RequestStarter& starter,
                                                    const ClusterView& cluster,
                                                    double tokens_per_second,
                                                    const v1::EstimateRequest& request);
// Of the cluster, also one that this gateway does not fit.
absl::StatusOr<v1::GetServerInfoResponse> AnswerServerInfo(const ClusterView& cluster);

}  // namespace lockstep::gateway
