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

  // The deadline is the scope's, or the default one.
  // Who reads the answer as it comes gives its credit.
  // `selection` is what else decides how the answer ends: requests attach to each other only where
  // it is equal.
  absl::StatusOr<std::shared_ptr<Generation>> Generate(const v1::GenerateRequest& request,
                                                       const rpc::CallScope& scope, AnswerForm form,
                                                       const std::string& selection = {}) const;
  absl::StatusOr<std::shared_ptr<Generation>> Score(const v1::ScoreRequest& request,
                                                    const rpc::CallScope& scope) const;
  // To be called when a generation has ended, before its client is told: what the request held is
  // free by the time the client asks again.
  void Settle(const Generation& generation) const { table_->Settle(generation); }
  // Counts the ends of what was started here, and of what was refused.
  const RequestMeter& meter() const { return meter_; }
  // Checks only.
  absl::StatusOr<MeasuredRequest> Measure(const v1::GenerateRequest& request) const;

 private:
  absl::StatusOr<std::shared_ptr<Generation>> Start(absl::StatusOr<ValidRequest> valid,
                                                    const std::string& body_digest,
                                                    std::shared_ptr<const ModelLimits> limits,
                                                    const rpc::CallScope& scope,
                                                    AnswerForm form) const;

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
