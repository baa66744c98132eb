#include "services/router/sequence_keys.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace lockstep::router {
namespace {

// Routing keys and prompts never meet in one hash value by construction.
constexpr uint64_t kRoutingKeySeed = 1;
constexpr uint64_t kPromptSeed = 2;

uint64_t HashIds(const std::vector<uint32_t>& ids, size_t count, uint64_t seed) {
  return base::Hash64({reinterpret_cast<const char*>(ids.data()), count * sizeof(uint32_t)}, seed);
}

absl::Status CheckPosition(const char* field, int64_t value, size_t limit) {
  if (value >= 0 && value <= static_cast<int64_t>(limit)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", must be in [0, ", limit, "]"));
}

}  // namespace

absl::Status CheckOpen(const OpenSequence& open) {
  const SequenceSpec& spec = *open.spec;
  if (spec.prompt_ids().empty()) return absl::InvalidArgumentError("prompt_ids is empty");
  if (spec.sequence.value().empty()) return absl::InvalidArgumentError("sequence_id is empty");
  if (absl::Status status =
          CheckPosition("deliver_output_from", spec.deliver_output_from, spec.generated_ids.size());
      !status.ok()) {
    return status;
  }
  if (absl::Status status =
          CheckPosition("deliver_prompt_from", spec.deliver_prompt_from, spec.prompt_ids().size());
      !status.ok()) {
    return status;
  }
  if (open.credit_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("credit_tokens is ", open.credit_tokens));
  }
  if (open.retry_budget < 0) {
    return absl::InvalidArgumentError(absl::StrCat("retry_budget is ", open.retry_budget));
  }
  if (open.time_left <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("deadline_seconds must be above 0");
  }
  return absl::OkStatus();
}

uint64_t AffinityKey(const SequenceSpec& spec, int64_t affinity_tokens) {
  const uint64_t space = base::Hash64(spec.cache_namespace);
  if (!spec.routing_key.empty()) return base::Hash64(spec.routing_key, space + kRoutingKeySeed);
  const size_t count = std::min(spec.prompt_ids().size(), static_cast<size_t>(affinity_tokens));
  return HashIds(spec.prompt_ids(), count, space + kPromptSeed);
}

uint64_t PrefixHash(const SequenceSpec& spec) {
  const uint64_t hash =
      HashIds(spec.prompt_ids(), spec.prompt_ids().size(), base::Hash64(spec.cache_namespace));
  return spec.disable_prefix_cache ? base::Hash64(spec.sequence.value(), hash) : hash;
}

}  // namespace lockstep::router
