#include "services/gateway/request_starter.h"

#include <utility>

#include "common/base/status_macros.h"

namespace lockstep::gateway {
namespace {

// Covers the sweep that ends what is late, every 50 ms, and the way back of an answer.
constexpr absl::Duration kAnswerMargin = absl::Milliseconds(200);

// What requests of one id are compared by. Of an id that will be minted there is only one.
template <typename Request>
std::string DigestOf(const Request& request) {
  return request.request_id().empty() ? std::string() : BodyDigest(request);
}

// Samples share what they are all given.
RequestTable::Size SizeOf(const ValidRequest& request) {
  const size_t ids = request.prompt_ids.size() + request.generated_ids.size();
  return {.samples = request.n,
          .prompt_bytes =
              static_cast<int64_t>(ids * sizeof(int32_t) + request.effective.ByteSizeLong())};
}

// The stops as the ledger's own matcher sees them: the same set that the worker is given.
absl::StatusOr<std::shared_ptr<const text::StopSet>> MakeStops(const ValidRequest& request) {
  const v1::StopOptions& stop = request.effective.stop();
  text::StopOptions options;
  options.stop_ids.assign(stop.stop_ids().begin(), stop.stop_ids().end());
  options.stop_strings.assign(stop.stop_strings().begin(), stop.stop_strings().end());
  options.new_tokens_min = stop.min_new_tokens();
  options.keeps_stop_in_text = request.keep_stop_in_text;
  return text::StopSet::Create(std::move(options));
}

}  // namespace

RequestStarter::RequestStarter(Options options, std::shared_ptr<const text::Tokenizer> tokenizer,
                               ClusterView* cluster, RequestTable* table, rpc::DrainState* drain,
                               Generation::Deps deps)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      validator_(tokenizer_.get()),
      cluster_(cluster),
      table_(table),
      drain_(drain),
      deps_(std::move(deps)),
      meter_(deps_.clock, deps_.metrics) {}

rpc::CallScope RequestStarter::ScopeToRun(const rpc::CallScope& call) const {
  const auto scope = rpc::ChildScope(call, deps_.clock->Now(), {.max = kAnswerMargin});
  return scope.ok() ? *scope : call;
}

absl::StatusOr<RequestStarter::Started> RequestStarter::Generate(const v1::GenerateRequest& request,
                                                                 const rpc::CallScope& scope,
                                                                 AnswerForm form) const {
  LOCKSTEP_ASSIGN_OR_RETURN(auto limits, cluster_->Limits());
  return Start(validator_.Generate(request, *limits), DigestOf(request), limits, scope, form);
}

absl::StatusOr<RequestStarter::Started> RequestStarter::Score(const v1::ScoreRequest& request,
                                                              const rpc::CallScope& scope) const {
  LOCKSTEP_ASSIGN_OR_RETURN(auto limits, cluster_->Limits());
  return Start(validator_.Score(request, *limits), DigestOf(request), limits, scope,
               AnswerForm::kScores);
}

absl::StatusOr<MeasuredRequest> RequestStarter::Measure(const v1::GenerateRequest& request) const {
  LOCKSTEP_ASSIGN_OR_RETURN(auto limits, cluster_->Limits());
  return validator_.Measure(request, *limits);
}

absl::StatusOr<RequestStarter::Started> RequestStarter::Start(
    absl::StatusOr<ValidRequest> valid, const std::string& body_digest,
    std::shared_ptr<const ModelLimits> limits, const rpc::CallScope& scope, AnswerForm form) const {
  const auto credit =
      form == AnswerForm::kAsItComes ? Generation::Credit::kReader : Generation::Credit::kLedger;
  const log::Logger logger =
      deps_.logger.ForRequest(scope.trace_id, valid.ok() ? valid->request_id : std::string());
  const auto refuse = [&](absl::Status status) {
    logger.Step("request_refused", {{"error", status}});
    return status;
  };
  if (!valid.ok()) return refuse(valid.status());
  if (absl::Status fits = CheckAnswerCanFit(*valid, form, *limits); !fits.ok()) {
    return refuse(std::move(fits));
  }
  if (drain_->phase() != rpc::DrainState::Phase::kServing) {
    return refuse(absl::UnavailableError("this gateway is draining"));
  }
  const absl::Time deadline =
      std::min(scope.deadline, deps_.clock->Now() + options_.default_deadline);
  const std::string request_id = valid->request_id;
  const auto make = [&]() -> absl::StatusOr<std::shared_ptr<Generation>> {
    auto context = std::make_shared<RequestContext>();
    context->request = *std::move(valid);
    context->limits = std::move(limits);
    context->tokenizer = tokenizer_;
    context->trace_id = scope.trace_id;
    context->request.effective.set_deadline_seconds(
        std::max(0.0, absl::ToDoubleSeconds(deadline - deps_.clock->Now())));
    if (tokenizer_ != nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(context->stops, MakeStops(context->request));
    }
    return std::make_shared<Generation>(
        std::move(context),
        Generation::Options{
            .deadline = deadline, .credit = credit, .retry_budget = options_.retry_budget},
        deps_);
  };
  absl::StatusOr<RequestTable::Found> found =
      table_->FindOrMake(request_id, body_digest, SizeOf(*valid), deadline, make);
  if (!found.ok()) return refuse(found.status());
  logger.Step("request_accepted", {{"request", request_id},
                                   {"samples", found->generation->context().request.n},
                                   {"attached", found->attached},
                                   {"deadline_seconds", deadline - deps_.clock->Now()}});
  if (!found->attached) found->generation->Start();
  // A caller who wants the whole answer must not wait for the credit of a stream.
  if (found->attached && credit == Generation::Credit::kLedger) {
    found->generation->LetLedgerGrant();
  }
  return Started{std::move(found->generation), deadline};
}

}  // namespace lockstep::gateway
