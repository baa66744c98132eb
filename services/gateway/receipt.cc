#include "services/gateway/receipt.h"

#include <cstdint>
#include <span>

#include "common/base/hash.h"

namespace lockstep::gateway {

std::string FingerprintDigest(const v1::ContractFingerprint& fingerprint) {
  return BodyDigest(fingerprint);
}

v1::Receipt MakeReceipt(const RequestContext& context, const v1::Sample& sample,
                        const std::vector<std::string>& weights_digests) {
  v1::Receipt receipt;
  if (context.limits->fingerprint.mode() != v1::MODE_DETERMINISTIC) return receipt;
  v1::EffectiveParameters effective = context.request.effective;
  effective.clear_deadline_seconds();
  effective.clear_seed();
  base::Hasher hasher;
  hasher.Bytes(context.limits->fingerprint_digest);
  for (int i = 0; i < sample.weight_versions_size(); ++i) {
    hasher.Number(sample.weight_versions(i).count()).Bytes(weights_digests[i]);
  }
  hasher.Array(std::span<const int32_t>(context.request.prompt_ids))
      .Bytes(BodyDigest(effective))
      .Number(sample.sub_seed())
      .Bytes(sample.token_ids())
      .Bytes(sample.logprobs().raw())
      .Bytes(sample.logprobs().scaled());
  // Of a group only the first sample brings the prompt's logprobs, and each sample must replay
  // alone, so they are covered where they are the answer.
  if (context.request.score_only) {
    hasher.Bytes(sample.prompt_logprobs().raw()).Bytes(sample.prompt_logprobs().scaled());
  }
  receipt.set_digest(hasher.Finish().ToString());
  receipt.set_fingerprint_digest(context.limits->fingerprint_digest);
  for (const std::string& digest : weights_digests) receipt.add_weights_digests(digest);
  return receipt;
}

}  // namespace lockstep::gateway
