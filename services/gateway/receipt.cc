#include "services/gateway/receipt.h"

#include <cstdint>
#include <span>

#include "common/base/hash.h"

namespace lockstep::gateway {
namespace {

// Parameters that the digest covers. Of a group only the first sample brings the prompt's logprobs,
// and each sample must replay alone, and go on at another gateway when those are there already: so
// they, and what was asked of them, are covered only where they are the answer.
v1::EffectiveParameters Covered(const ValidRequest& request) {
  v1::EffectiveParameters covered = request.effective;
  covered.clear_deadline_seconds();
  covered.clear_seed();
  if (!request.score_only) {
    covered.mutable_logprobs()->clear_prompt_from();
    covered.mutable_logprobs()->clear_prompt_details();
  }
  return covered;
}

}  // namespace

std::string FingerprintDigest(const v1::ContractFingerprint& fingerprint) {
  return BodyDigest(fingerprint);
}

v1::Receipt MakeReceipt(const RequestContext& context, const v1::Sample& sample,
                        const std::vector<std::string>& weights_digests) {
  v1::Receipt receipt;
  if (context.limits->fingerprint.mode() != v1::MODE_DETERMINISTIC) return receipt;
  receipt.set_fingerprint_digest(context.limits->fingerprint_digest);
  for (const std::string& digest : weights_digests) receipt.add_weights_digests(digest);
  if (sample.unscored_tokens() > 0) return receipt;
  base::Hasher hasher;
  hasher.Bytes(context.limits->fingerprint_digest);
  for (int i = 0; i < sample.weight_versions_size(); ++i) {
    hasher.Number(sample.weight_versions(i).count()).Bytes(weights_digests[i]);
  }
  hasher.Array(std::span<const int32_t>(context.request.prompt_ids))
      .Bytes(BodyDigest(Covered(context.request)))
      .Number(sample.sub_seed())
      .Bytes(sample.token_ids())
      .Bytes(sample.logprobs().raw())
      .Bytes(sample.logprobs().scaled());
  if (context.request.score_only) {
    hasher.Bytes(sample.prompt_logprobs().raw()).Bytes(sample.prompt_logprobs().scaled());
  }
  receipt.set_digest(hasher.Finish().ToString());
  return receipt;
}

}  // namespace lockstep::gateway
