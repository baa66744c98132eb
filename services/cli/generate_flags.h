#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/cli/flags.h"

namespace lockstep::cli {

// A GenerateRequest from flags. Flags that are not given leave their field unset, so the server's
// defaults hold.
struct GenerateFlags {
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_ids;
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
  std::string stop_ids;
  bool ignore_eos = false;
  int64_t top_logprobs = 0;
  std::optional<int64_t> prompt_logprobs_from;
  bool entropy = false;
  bool no_cache = false;

  void AddTo(Flags* flags);
  // INVALID_ARGUMENT unless exactly one prompt is given.
  absl::StatusOr<v1::GenerateRequest> Build() const;
};

// "1,2,3" or "1 2 3".
absl::StatusOr<std::vector<int64_t>> ParseIds(const std::string& text);

}  // namespace lockstep::cli
