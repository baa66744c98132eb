#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/deadline.h"
#include "common/rpc/drain_state.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/answer_size.h"
#include "services/gateway/cluster_view.h"
#include "services/gateway/generation.h"
#include "services/gateway/request_meter.h"
#include "services/gateway/request_table.h"

namespace lockstep::gateway {

// Turns a request into a generation in work: validates it, finds its twin if there is one, starts
// it. What every generating RPC shares. Thread-safe.
class RequestStarter {
 public:
  struct Options {
    absl::Duration default_deadline;
    int64_t retry_budget = 0;
  };
  RequestStarter(Options options, std::shared_ptr<const text::Tokenizer> tokenizer,
                 ClusterView* cluster, RequestTable* table, rpc::DrainState* drain,
                 Generation::Deps deps);

  // The scope for the run of a request: its deadline comes before the call's, so that what there
  // is by then still reaches a client that waits.
  rpc::CallScope ScopeToRun(const rpc::CallScope& call) const;

  // What the caller has to Subscribe to, and until when: the scope's deadline, or the default one.
  struct Started {
    std::shared_ptr<Generation> generation;
    absl::Time deadline;
  };
  // Who reads the answer as it comes gives its credit.
  absl::StatusOr<Started> Generate(const v1::GenerateRequest& request, const rpc::CallScope& scope,
                                   AnswerForm form) const;
  absl::StatusOr<Started> Score(const v1::ScoreRequest& request, const rpc::CallScope& scope) const;
  // To be called when a generation has ended, before its client is told: what the request held is
  // free by the time the client asks again.
  void Settle(const Generation& generation) const { table_->Settle(generation); }
  // Counts the ends of what was started here, and of what was refused.
  const RequestMeter& meter() const { return meter_; }
  // Checks only.
  absl::StatusOr<MeasuredRequest> Measure(const v1::GenerateRequest& request) const;

 private:
  absl::StatusOr<Started> Start(absl::StatusOr<ValidRequest> valid, const std::string& body_digest,
                                std::shared_ptr<const ModelLimits> limits,
                                const rpc::CallScope& scope, AnswerForm form) const;

  const Options options_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const RequestValidator validator_;
  ClusterView* const cluster_;
  RequestTable* const table_;
  rpc::DrainState* const drain_;
  const Generation::Deps deps_;
  const RequestMeter meter_;
};

}  // namespace lockstep::gateway
