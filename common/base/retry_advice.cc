#include "common/base/retry_advice.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lockstep::base {
namespace {

constexpr char kPayloadUrl[] = "lockstep.v1/retry_advice";

// "<0 or 1> <nanoseconds>".
std::string Encode(const RetryAdvice& advice) {
  return absl::StrCat(advice.retryable ? 1 : 0, " ", absl::ToInt64Nanoseconds(advice.delay));
}

std::optional<RetryAdvice> Decode(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  int retryable = 0;
  int64_t nanoseconds = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &retryable) ||
      !absl::SimpleAtoi(parts[1], &nanoseconds)) {
    return std::nullopt;
  }
  return RetryAdvice{.retryable = retryable != 0, .delay = absl::Nanoseconds(nanoseconds)};
}

}  // namespace

absl::Status WithRetryAdvice(absl::Status status, RetryAdvice advice) {
  if (!status.ok()) status.SetPayload(kPayloadUrl, absl::Cord(Encode(advice)));
  return status;
}

RetryAdvice GetRetryAdvice(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kPayloadUrl)) {
    if (const std::optional<RetryAdvice> advice = Decode(std::string(*payload))) return *advice;
  }
  return {.retryable = status.code() == absl::StatusCode::kUnavailable};
}

}  // namespace lockstep::base
