#include "services/gateway/gateway_queries.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/packed_array.h"
#include "common/base/status_macros.h"
#include "services/text/incremental_detokenizer.h"

namespace lockstep::gateway {
namespace {

constexpr char kVersion[] = "0.1.0";

// As much work as kTextBytesMax allows, and for the same reason.
constexpr int kDetokenizeIdsMax = 1 << 18;
constexpr int kEstimateRequestsMax = 1 << 14;

absl::Status CheckEstimateSize(const v1::EstimateRequest& request) {
  if (request.requests_size() > kEstimateRequestsMax) {
    return absl::InvalidArgumentError(absl::StrCat("requests: ", request.requests_size(),
                                                   " of them, at most ", kEstimateRequestsMax,
                                                   " in one call"));
  }
  size_t text_bytes = 0;
  for (const v1::GenerateRequest& generate : request.requests()) {
    text_bytes += generate.prompt_text().size();
  }
  return CheckTextBytes(text_bytes, "requests: prompt_text, together");
}

absl::Status NoTokenizer() {
  return absl::FailedPreconditionError("this gateway has no tokenizer (tokenizer_dir is not set)");
}

// The largest number there is where the sum is larger.
int64_t CappedSum(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

int64_t CappedProduct(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t Blocks(int64_t tokens, int64_t block_tokens) {
  return tokens / block_tokens + (tokens % block_tokens > 0);
}

}  // namespace

absl::StatusOr<v1::TokenizeResponse> AnswerTokenize(const text::Tokenizer* tokenizer,
                                                    const ClusterView& cluster,
                                                    const v1::TokenizeRequest& request) {
  if (tokenizer == nullptr) return NoTokenizer();
  LOCKSTEP_RETURN_IF_ERROR(cluster.Limits().status());
  LOCKSTEP_RETURN_IF_ERROR(CheckTextBytes(request.text().size(), "text"));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<int32_t> ids,
      tokenizer->Encode(request.text(), {.adds_special_tokens = request.add_special_tokens()}));
  v1::TokenizeResponse response;
  response.set_ids(base::PackArray(ids));
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> AnswerDetokenize(
    const std::shared_ptr<const text::Tokenizer>& tokenizer, const ClusterView& cluster,
    const v1::DetokenizeRequest& request) {
  if (tokenizer == nullptr) return NoTokenizer();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto limits, cluster.Limits());
  if (request.ids_size() > kDetokenizeIdsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ids: ", request.ids_size(), " of them, at most ", kDetokenizeIdsMax, " in one call"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(request.ids(), "ids", limits->vocabulary));
  text::IncrementalDetokenizer detokenizer(tokenizer, request.skip_special_tokens());
  v1::DetokenizeResponse response;
  for (const int64_t id : request.ids()) {
    detokenizer.Feed(static_cast<int32_t>(id), response.mutable_text());
  }
  response.set_text_tail_bytes(std::string(detokenizer.tail_bytes()));
  return response;
}

absl::StatusOr<v1::EstimateResponse> AnswerEstimate(const RequestStarter& starter,
                                                    const ClusterView& cluster,
                                                    double tokens_per_second,
                                                    const v1::EstimateRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckEstimateSize(request));
  LOCKSTEP_RETURN_IF_ERROR(cluster.Limits().status());
  LOCKSTEP_ASSIGN_OR_RETURN(const ClusterView::Facts facts, cluster.Look());
  const v1::GetClusterInfoResponse& info = facts.info;
  const int64_t block_tokens = std::max<int64_t>(1, info.kv_block_tokens());
  v1::EstimateResponse response;
  response.set_fits(true);
  int64_t tokens_to_come = 0;
  for (int i = 0; i < request.requests_size(); ++i) {
    const absl::StatusOr<MeasuredRequest> measured = starter.Measure(request.requests(i));
    if (!measured.ok()) {
      return absl::Status(measured.status().code(),
                          absl::StrCat("requests[", i, "].", measured.status().message()));
    }
    const ValidRequest& valid = measured->request;
    const absl::Status fits = measured->fits.ok()
                                  ? CheckAnswerCanFit(valid, AnswerForm::kWhole, *facts.limits)
                                  : measured->fits;
    if (response.fits() && !fits.ok()) {
      response.set_fits(false);
      response.set_misfit(absl::StrCat("requests[", i, "].", fits.message()));
    }
    const int64_t prompt = static_cast<int64_t>(valid.prompt_ids.size());
    const int64_t generated = valid.effective.stop().max_new_tokens();
    response.set_prompt_tokens(response.prompt_tokens() + prompt);
    response.set_generated_tokens_max(
        CappedSum(response.generated_tokens_max(), CappedProduct(valid.n, generated)));
    const int64_t to_come = generated - static_cast<int64_t>(valid.generated_ids.size());
    tokens_to_come = CappedSum(tokens_to_come, CappedProduct(valid.n, to_come));
    // Whole blocks of the prompt are shared by the samples of a group.
    const int64_t shared = prompt / block_tokens;
    const int64_t own = Blocks(CappedSum(prompt, generated), block_tokens) - shared;
    response.set_kv_blocks_max(
        CappedSum(response.kv_blocks_max(), CappedSum(shared, CappedProduct(valid.n, own))));
  }
  for (const v1::WorkerState& worker : info.workers()) {
    response.set_kv_blocks_cluster(response.kv_blocks_cluster() + worker.kv_blocks());
  }
  if (tokens_per_second > 0) {
    response.set_expected_seconds(static_cast<double>(tokens_to_come) / tokens_per_second);
  }
  return response;
}

absl::StatusOr<v1::GetServerInfoResponse> AnswerServerInfo(const ClusterView& cluster) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ClusterView::Facts facts, cluster.Look());
  const auto& [limits, info] = facts;
  v1::GetServerInfoResponse response;
  response.set_version(kVersion);
  *response.mutable_fingerprint() = limits->fingerprint;
  response.set_fingerprint_digest(limits->fingerprint_digest);
  response.set_model(limits->model_name);
  response.set_context_tokens_max(limits->context_tokens_max);
  response.set_vocabulary(limits->vocabulary);
  response.mutable_eos_ids()->Add(limits->eos_ids.begin(), limits->eos_ids.end());
  response.set_generation_config_json(limits->generation_config_json);
  response.set_message_bytes_max(limits->message_bytes_max);
  for (const v1::WorkerState& state : info.workers()) {
    v1::WorkerInfo* worker = response.add_workers();
    worker->set_worker_id(state.worker().worker_id());
    worker->set_incarnation(state.worker().incarnation());
    worker->set_address(state.address());
    worker->set_running_sequences(state.running_sequences());
    worker->set_kv_blocks_free(state.kv_blocks_free());
    worker->set_kv_blocks(state.kv_blocks());
    worker->set_draining(state.draining());
    worker->set_metrics_address(state.metrics_address());
    worker->set_kv_block_tokens(info.kv_block_tokens());
  }
  response.set_weight_version(limits->weight_version);
  response.set_weights_digest(limits->weights_digest);
  return response;
}

}  // namespace lockstep::gateway
