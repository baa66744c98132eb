#include "services/gateway/request_validator.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "services/gateway/parameter_rules.h"
#include "services/gateway/seeds.h"

namespace lockstep::gateway {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr int64_t kSamplesMax = 1024;
constexpr int64_t kSampleIndexEnd = int64_t{1} << 31;

std::string MintRequestId() {
  // Not std::random_device: it asks the processor what it can, which a virtual machine answers by a
  // trap of tens of microseconds.
  std::array<uint64_t, 2> drawn;
  LOCKSTEP_CHECK_EQ(getrandom(drawn.data(), sizeof drawn, 0), ssize_t{sizeof drawn});
  return absl::StrFormat("minted-%016x%016x", drawn[0], drawn[1]);
}

absl::Status CheckMode(v1::Mode required, const ModelLimits& limits) {
  if (!v1::Mode_IsValid(required)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "require_mode: ", required, " is none of ", v1::Mode_Name(v1::MODE_UNSPECIFIED), ", ",
        v1::Mode_Name(v1::MODE_DETERMINISTIC), ", ", v1::Mode_Name(v1::MODE_NORMAL)));
  }
  const v1::Mode mode = limits.fingerprint.mode();
  const v1::Mode wanted = required == v1::MODE_UNSPECIFIED ? v1::MODE_DETERMINISTIC : required;
  if (wanted == mode) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("require_mode: ", v1::Mode_Name(wanted),
                                                    " is required, the cluster runs in ",
                                                    v1::Mode_Name(mode)));
}

absl::Status CheckWeightVersion(bool required, int64_t wanted, const ModelLimits& limits) {
  if (!required || wanted == limits.weight_version) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("require_weight_version: ", wanted,
                                                    " is required, the cluster serves ",
                                                    limits.weight_version));
}

absl::Status CheckFitsContext(int64_t tokens, absl::string_view field, const ModelLimits& limits) {
  if (tokens <= limits.context_tokens_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", tokens, " tokens, the context holds ", limits.context_tokens_max));
}

absl::Status CheckFitsKv(int64_t tokens, absl::string_view fields, const ModelLimits& limits) {
  if (tokens <= limits.kv_tokens_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      fields, ": ", tokens, " tokens, the largest worker holds ", limits.kv_tokens_max));
}

absl::Status TakeName(std::string_view request_id, ValidRequest* out) {
  LOCKSTEP_RETURN_IF_ERROR(CheckName(request_id, "request_id"));
  out->request_id_minted = request_id.empty();
  out->request_id = request_id.empty() ? MintRequestId() : std::string(request_id);
  return absl::OkStatus();
}

absl::Status TakeSeeds(const v1::GenerateRequest& request, ValidRequest* out) {
  out->n = request.has_n() ? request.n() : 1;
  out->first_sample_index = request.first_sample_index();
  if (out->n < 1 || out->n > kSamplesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("n: ", out->n, " is outside [1, ", kSamplesMax, "]"));
  }
  if (out->first_sample_index < 0 || out->first_sample_index > kSampleIndexEnd - out->n) {
    return absl::InvalidArgumentError(absl::StrCat("first_sample_index: ", out->first_sample_index,
                                                   " is outside [0, ", kSampleIndexEnd - out->n,
                                                   "], which is 2^31 - n"));
  }
  if (request.has_exact_seed()) {
    if (out->n != 1) {
      return absl::InvalidArgumentError(absl::StrCat("exact_seed: needs n = 1, n is ", out->n));
    }
    out->sub_seeds = {request.exact_seed()};
    return absl::OkStatus();
  }
  const uint64_t seed = request.has_seed() ? request.seed() : SeedOf(out->request_id);
  out->effective.set_seed(seed);
  for (int64_t i = 0; i < out->n; ++i) {
    out->sub_seeds.push_back(SubSeed(seed, static_cast<uint64_t>(out->first_sample_index + i)));
  }
  return absl::OkStatus();
}

absl::Status CheckInsertedSpans(const v1::GenerateRequest& request, int64_t prompt_tokens) {
  int64_t end = 0;
  for (int i = 0; i < request.inserted_spans_size(); ++i) {
    const v1::TokenSpan& span = request.inserted_spans(i);
    if (span.begin() < end || span.end() <= span.begin() || span.end() > prompt_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "inserted_spans[", i, "]: [", span.begin(), ", ", span.end(),
          ") is empty, overlaps the one before, or leaves the prompt of ", prompt_tokens));
    }
    end = span.end();
  }
  return absl::OkStatus();
}

// A ScoreRequest has at its top level what a GenerateRequest has in `sampling` and `logprobs`, and
// errors name the field that the client sees.
absl::Status AtTopLevel(const absl::Status& status) {
  absl::string_view message = status.message();
  if (!absl::ConsumePrefix(&message, "sampling.")) absl::ConsumePrefix(&message, "logprobs.");
  return absl::Status(status.code(), message);
}

template <typename Ids>
std::vector<int32_t> ToIds(const Ids& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

}  // namespace

absl::Status CheckIds(const google::protobuf::RepeatedField<int64_t>& ids, absl::string_view field,
                      int64_t vocabulary) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "]: ", ids[i], " is outside [0, ", vocabulary, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckName(std::string_view name, absl::string_view field) {
  if (name.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", name.size(), " bytes, at most ", kNameBytesMax));
  }
  for (const char c : name) {
    if (c < 0x20 || c > 0x7e) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: byte 0x%02x is not printable ASCII",
                                                        field, static_cast<unsigned char>(c)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTextBytes(size_t bytes, absl::string_view field) {
  if (bytes <= kTextBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", bytes, " bytes of text, at most ",
                                                 kTextBytesMax,
                                                 " in one call; larger prompts are sent as ids"));
}

std::string BodyDigest(const google::protobuf::Message& request) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&coded);
  }
  // With the type: two kinds of request can have the same bytes.
  return base::Hasher().Bytes(request.GetTypeName()).Bytes(bytes).Finish().ToString();
}

absl::StatusOr<ValidRequest> RequestValidator::Generate(const v1::GenerateRequest& request,
                                                        const ModelLimits& limits) const {
  return Check(request, limits, Sizes::kChecked);
}

absl::StatusOr<ValidRequest> RequestValidator::Check(const v1::GenerateRequest& request,
                                                     const ModelLimits& limits, Sizes sizes) const {
  ValidRequest out;
  LOCKSTEP_RETURN_IF_ERROR(TakeName(request.request_id(), &out));
  LOCKSTEP_RETURN_IF_ERROR(CheckName(request.routing_key(), "routing_key"));
  LOCKSTEP_RETURN_IF_ERROR(CheckName(request.cache_namespace(), "cache_namespace"));
  LOCKSTEP_RETURN_IF_ERROR(CheckMode(request.require_mode(), limits));
  LOCKSTEP_RETURN_IF_ERROR(CheckWeightVersion(request.has_require_weight_version(),
                                              request.require_weight_version(), limits));
  if (request.has_prompt_text()) {
    if (tokenizer_ == nullptr) {
      return absl::FailedPreconditionError(
          "prompt_text: this gateway has no tokenizer (tokenizer_dir is not set)");
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckTextBytes(request.prompt_text().size(), "prompt_text"));
    LOCKSTEP_ASSIGN_OR_RETURN(
        out.prompt_ids, tokenizer_->Encode(request.prompt_text(),
                                           {.adds_special_tokens = request.add_special_tokens()}));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(CheckIds(request.prompt_ids().ids(), "prompt_ids", limits.vocabulary));
    out.prompt_ids = ToIds(request.prompt_ids().ids());
  }
  const int64_t prompt_tokens = static_cast<int64_t>(out.prompt_ids.size());
  if (prompt_tokens < 1) return absl::InvalidArgumentError("prompt: empty");
  if (sizes == Sizes::kChecked) {
    LOCKSTEP_RETURN_IF_ERROR(CheckFitsContext(prompt_tokens, "prompt", limits));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckInsertedSpans(request, prompt_tokens));
  LOCKSTEP_RETURN_IF_ERROR(TakeSeeds(request, &out));
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(request.generated_ids(), "generated_ids", limits.vocabulary));
  if (request.generated_ids_size() > 0 && out.n != 1) {
    return absl::InvalidArgumentError(absl::StrCat("generated_ids: needs n = 1, n is ", out.n));
  }
  out.generated_ids = ToIds(request.generated_ids());

  *out.effective.mutable_sampling() = request.sampling();
  *out.effective.mutable_stop() = request.stop();
  *out.effective.mutable_logprobs() = request.logprobs();
  LOCKSTEP_RETURN_IF_ERROR(
      ApplySamplingRules(request.use_model_defaults() ? limits.generation_config_json : "", limits,
                         out.effective.mutable_sampling()));
  const TokenRoom room = {.tokens = std::max<int64_t>(0, limits.context_tokens_max - prompt_tokens),
                          .is_limit = sizes == Sizes::kChecked};
  LOCKSTEP_RETURN_IF_ERROR(ApplyStopRules(room, request.generated_ids_size(), tokenizer_ != nullptr,
                                          limits, out.effective.mutable_stop()));
  LOCKSTEP_RETURN_IF_ERROR(CheckAnIdIsLeft(out.effective.sampling(), out.effective.stop(),
                                           request.generated_ids_size(), limits));
  LOCKSTEP_RETURN_IF_ERROR(
      ApplyLogprobRules(prompt_tokens, limits, out.effective.mutable_logprobs()));
  if (sizes == Sizes::kChecked) {
    LOCKSTEP_RETURN_IF_ERROR(CheckFitsKv(prompt_tokens + out.effective.stop().max_new_tokens(),
                                         "prompt and stop.max_new_tokens", limits));
  }
  out.prompt_logprobs_from = request.logprobs().prompt_from();
  out.routing_key = request.routing_key();
  out.cache_namespace = request.cache_namespace();
  out.disable_prefix_cache = request.disable_prefix_cache();
  out.skip_text = request.skip_text() || tokenizer_ == nullptr;
  out.skip_special_tokens = !request.has_skip_special_tokens() || request.skip_special_tokens();
  out.keep_stop_in_text = request.stop().keep_stop_in_text();
  return out;
}

absl::StatusOr<MeasuredRequest> RequestValidator::Measure(const v1::GenerateRequest& request,
                                                          const ModelLimits& limits) const {
  absl::StatusOr<ValidRequest> valid = Generate(request, limits);
  if (valid.ok()) return MeasuredRequest{*std::move(valid), absl::OkStatus()};
  absl::StatusOr<ValidRequest> large = Check(request, limits, Sizes::kIgnored);
  if (!large.ok()) return large.status();  // It is wrong in another way too.
  return MeasuredRequest{*std::move(large), valid.status()};
}

absl::StatusOr<ValidRequest> RequestValidator::Score(const v1::ScoreRequest& request,
                                                     const ModelLimits& limits) const {
  ValidRequest out;
  LOCKSTEP_RETURN_IF_ERROR(TakeName(request.request_id(), &out));
  LOCKSTEP_RETURN_IF_ERROR(CheckName(request.routing_key(), "routing_key"));
  LOCKSTEP_RETURN_IF_ERROR(CheckName(request.cache_namespace(), "cache_namespace"));
  LOCKSTEP_RETURN_IF_ERROR(CheckMode(request.require_mode(), limits));
  LOCKSTEP_RETURN_IF_ERROR(CheckWeightVersion(request.has_require_weight_version(),
                                              request.require_weight_version(), limits));
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(request.ids(), "ids", limits.vocabulary));
  const int64_t tokens = request.ids_size();
  if (tokens < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("ids: ", tokens, " ids, at least 2 are needed to score one"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckFitsContext(tokens, "ids", limits));
  LOCKSTEP_RETURN_IF_ERROR(CheckFitsKv(tokens, "ids", limits));
  const int64_t from = request.has_from() ? request.from() : 1;
  if (from < 1 || from >= tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("from: ", from, " is outside [1, ", tokens, ")"));
  }
  out.prompt_ids = ToIds(request.ids());
  out.prompt_logprobs_from = from;
  out.score_only = true;
  out.skip_text = true;
  out.sub_seeds = {0};
  v1::LogprobOptions* logprobs = out.effective.mutable_logprobs();
  logprobs->set_top_count(request.top_count());
  *logprobs->mutable_chosen_ids() = request.chosen_ids();
  logprobs->set_entropy(request.entropy());
  logprobs->set_prompt_from(from);
  logprobs->set_prompt_details(true);
  if (request.has_temperature()) {
    out.effective.mutable_sampling()->set_temperature(request.temperature());
  }
  LOCKSTEP_RETURN_IF_ERROR(
      AtTopLevel(ApplySamplingRules("", limits, out.effective.mutable_sampling())));
  out.effective.mutable_stop()->set_max_new_tokens(0);
  out.effective.mutable_stop()->set_min_new_tokens(0);
  LOCKSTEP_RETURN_IF_ERROR(AtTopLevel(ApplyLogprobRules(tokens, limits, logprobs)));
  out.routing_key = request.routing_key();
  out.cache_namespace = request.cache_namespace();
  out.disable_prefix_cache = request.disable_prefix_cache();
  return out;
}

}  // namespace lockstep::gateway
