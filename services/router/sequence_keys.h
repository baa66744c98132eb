#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "services/router/sequence_types.h"

namespace lockstep::router {

// INVALID_ARGUMENT when a gateway's positions, credit or deadline make no sense.
absl::Status CheckOpen(const OpenSequence& open);

// Sequences with equal keys meet their KV on one worker: those of a routing key, or those whose
// prompts agree in namespace and in their first `affinity_tokens` ids.
uint64_t AffinityKey(const SequenceSpec& spec, int64_t affinity_tokens);

// Sequences with equal hashes share the KV of their whole prompt, and the scheduler charges it
// once. A sequence that keeps out of the prefix cache shares with none.
uint64_t PrefixHash(const SequenceSpec& spec);

}  // namespace lockstep::router
