#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/model_limits.h"
#include "services/text/tokenizer.h"

namespace lockstep::gateway {

// A request whose every field was checked and whose defaults are filled in.
struct ValidRequest {
  std::string request_id;  // Given or minted.
  bool request_id_minted = false;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> generated_ids;
  v1::EffectiveParameters effective;  // Every field set.
  int64_t n = 1;
  int64_t first_sample_index = 0;
  std::vector<uint64_t> sub_seeds;   // One a sample.
  int64_t prompt_logprobs_from = 0;  // 0: none.
  std::string routing_key;
  std::string cache_namespace;
  bool disable_prefix_cache = false;
  bool score_only = false;
  bool skip_text = false;
  bool skip_special_tokens = true;
  bool keep_stop_in_text = false;
};

// A request that is right but for its size, perhaps.
struct MeasuredRequest {
  ValidRequest request;
  absl::Status fits;  // Else the error that it would be refused with.
};

// Checks requests against the model. Every error is INVALID_ARGUMENT (or FAILED_PRECONDITION where
// the cluster, not the request, would have to change) and names field, value and limit.
class RequestValidator {
 public:
  // `tokenizer` may be null: then prompts must be ids and stop strings are refused.
  explicit RequestValidator(const text::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  absl::StatusOr<ValidRequest> Generate(const v1::GenerateRequest& request,
                                        const ModelLimits& limits) const;
  // As Generate, but a request that is only too large for the context or for any worker is no
  // error.
  absl::StatusOr<MeasuredRequest> Measure(const v1::GenerateRequest& request,
                                          const ModelLimits& limits) const;
  absl::StatusOr<ValidRequest> Score(const v1::ScoreRequest& request,
                                     const ModelLimits& limits) const;

 private:
  // What a request would be refused for only because of its size.
  enum class Sizes { kChecked, kIgnored };
  absl::StatusOr<ValidRequest> Check(const v1::GenerateRequest& request, const ModelLimits& limits,
                                     Sizes sizes) const;

  const text::Tokenizer* const tokenizer_;
};

// INVALID_ARGUMENT "<field>[i]: <id> is outside [0, <vocabulary>)".
absl::Status CheckIds(const google::protobuf::RepeatedField<int64_t>& ids, absl::string_view field,
                      int64_t vocabulary);

// INVALID_ARGUMENT names the field when a name is longer than 256 bytes, or has one that is no
// printable ASCII.
absl::Status CheckName(std::string_view name, absl::string_view field);

// Text that one call may bring. Everything else of the gateway waits while it is tokenised, which
// takes about a tenth of a second for this much.
inline constexpr size_t kTextBytesMax = size_t{1} << 20;
// INVALID_ARGUMENT "<field>: <bytes> bytes, at most <kTextBytesMax>".
absl::Status CheckTextBytes(size_t bytes, absl::string_view field);

// XXH3-128 of everything in the request that decides its answer; deadline and trace are not in it.
std::string BodyDigest(const google::protobuf::Message& request);

}  // namespace lockstep::gateway
