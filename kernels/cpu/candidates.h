#pragma once

#include <cstdint>
#include <span>

#include "kernels/api/sampling.h"

namespace lockstep::kernels::cpu {

// An id and its logit as one integer: greater means a higher logit, or the same and a lower id.
// Logits must not be NaN or -0.
using Candidate = uint64_t;
Candidate MakeCandidate(float logit, int32_t id);
int32_t IdOf(Candidate candidate);
float LogitOf(Candidate candidate);

// ceil(top_p * total), exactly; top_p in (0, 1], total < 2^63.
uint64_t TopPThreshold(float top_p, uint64_t total);

// Top-k, top-p over what top-k left, then min-p. Reorders `all` and returns how many at its front
// stay, in no order. `exponentials` [vocabulary], exp(logit - largest), is read when top_p < 1;
// `min_p_log` is the logarithm of min_p, -infinity when it is off. The largest always stays.
size_t FilterCandidates(std::span<Candidate> all, const SamplingRow& row, float largest,
                        const float* exponentials, float min_p_log);

}  // namespace lockstep::kernels::cpu
