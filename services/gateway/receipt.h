#pragma once

#include <string>
#include <vector>

#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/sample_ledger.h"

namespace lockstep::gateway {

// XXH3-128 of the fields in order of their numbers, 32 hex digits.
std::string FingerprintDigest(const v1::ContractFingerprint& fingerprint);

// Proof of one ended sample. Covers, in this order: fingerprint digest, (count, weights digest) of
// each version run, prompt ids, effective parameters, sub-seed, output ids, raw and scaled logprob
// bits; for a score, those of the scored positions. Of the parameters these are left out: the
// deadline; the seed, because the sub-seed alone decides the noise; and, except for a score, which
// logprobs of the prompt were asked, because no sample but a request's first has any. A sample with
// unscored tokens has no digest: nothing proves those.
v1::Receipt MakeReceipt(const RequestContext& context, const v1::Sample& sample,
                        const std::vector<std::string>& weights_digests);

}  // namespace lockstep::gateway
