#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/packed_array.h"
#include "services/gateway/logprob_runs.h"
#include "services/gateway/request_validator.h"

namespace lockstep::gateway {

// Tokens of one sample that may be under way from its worker. What is under way stands in front of
// everybody else's results on each thread and connection that it passes, so a request is bounded in
// bytes over all of its samples, however many they are and whatever each token brings. A worker
// must not wait for the grant of each token either.
inline int64_t CreditWindow(const ValidRequest& request) {
  constexpr int64_t kRequestBytes = 128 << 10;
  constexpr int64_t kTokensMin = 4;
  constexpr int64_t kTokensMax = 256;
  const v1::LogprobOptions& options = request.effective.logprobs();
  const LogprobWidths widths = WidthsFor(options, options.generated(), /*details=*/true);
  const int64_t token_bytes = (1 + widths.Sum()) * base::kPackedNumberBytes;
  const int64_t tokens = kRequestBytes / (request.n * token_bytes);
  return std::clamp(tokens, kTokensMin, kTokensMax);
}

}  // namespace lockstep::gateway
