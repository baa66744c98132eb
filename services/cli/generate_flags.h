#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/cli/flags.h"

namespace lockstep::cli {

// What a token id, and a number of tokens, may be before a model says less.
inline constexpr Range<int64_t> kTokenIds = {0, std::numeric_limits<int32_t>::max()};
inline constexpr int64_t kTokensMax = int64_t{1} << 24;

// A GenerateRequest from flags. Flags that are not given leave their field unset, so the server's
// defaults hold.
struct GenerateFlags {
  std::optional<std::string> prompt;
  std::optional<std::vector<int64_t>> prompt_ids;
  std::string request_id;
  std::string routing_key;
  std::optional<int64_t> n;
  std::optional<uint64_t> seed;
  std::optional<uint64_t> exact_seed;
  std::optional<float> temperature;
  std::optional<int64_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> presence_penalty;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> min_new_tokens;
  std::vector<std::string> stop_strings;
  std::vector<int64_t> stop_ids;
  bool ignore_eos = false;
  int64_t top_logprobs = 0;
  std::optional<int64_t> prompt_logprobs_from;
  bool entropy = false;
  bool no_cache = false;

  void AddTo(Flags* flags);
  // INVALID_ARGUMENT unless exactly one prompt is given.
  absl::StatusOr<v1::GenerateRequest> Build() const;
};

}  // namespace lockstep::cli
