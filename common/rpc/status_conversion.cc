#include "common/rpc/status_conversion.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/base/retry_advice.h"
#include "common/base/utf8.h"

namespace lockstep::rpc {
namespace {

// Trailers have 8 KiB by default. The message is in there twice, once percent-encoded (up to three
// bytes for one), and a status that does not fit would reach the client as another error.
constexpr size_t kMessageBytesMax = 1024;
// An advice beyond this is a peer's mistake.
constexpr double kRetryDelaySecondsMax = 3600;

std::string WireMessage(std::string_view message) {
  if (message.size() <= kMessageBytesMax) return base::ToValidUtf8(message);
  size_t cut = kMessageBytesMax;
  while (cut > 0 && (static_cast<unsigned char>(message[cut]) & 0xC0) == 0x80) --cut;
  return base::ToValidUtf8(message.substr(0, cut)) + "...";
}

// absl and gRPC number the codes alike; everything else is unknown.
absl::StatusCode ToCode(int code) {
  const bool defined = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return defined ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

base::RetryAdvice ToAdvice(const v1::ErrorDetail& detail) {
  const double seconds = detail.retry_delay_seconds();
  const bool usable = std::isfinite(seconds) && seconds > 0;
  return {.retryable = detail.retryable(),
          .delay = usable ? absl::Seconds(std::min(seconds, kRetryDelaySecondsMax))
                          : absl::ZeroDuration()};
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::ErrorDetail detail = ToErrorDetail(status);
  return {static_cast<grpc::StatusCode>(detail.code()), detail.message(),
          detail.SerializeAsString()};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const absl::Status plain(ToCode(status.error_code()), status.error_message());
  v1::ErrorDetail detail;
  const std::string& bytes = status.error_details();
  // A detail of another code was not made for this status: a proxy may have replaced the status.
  if (bytes.empty() || !detail.ParseFromString(bytes) || detail.code() != status.error_code()) {
    return plain;
  }
  return base::WithRetryAdvice(plain, ToAdvice(detail));
}

v1::ErrorDetail ToErrorDetail(const absl::Status& status) {
  v1::ErrorDetail detail;
  detail.set_code(static_cast<int>(status.code()));
  const absl::string_view message = status.message();
  detail.set_message(WireMessage({message.data(), message.size()}));
  const base::RetryAdvice advice = base::GetRetryAdvice(status);
  detail.set_retryable(advice.retryable);
  detail.set_retry_delay_seconds(absl::ToDoubleSeconds(advice.delay));
  return detail;
}

absl::Status FromErrorDetail(const v1::ErrorDetail& detail) {
  if (detail.code() == 0) return absl::OkStatus();
  return base::WithRetryAdvice(absl::Status(ToCode(detail.code()), detail.message()),
                               ToAdvice(detail));
}

}  // namespace lockstep::rpc
