#include "common/rpc/status_conversion.h"

#include <limits>
#include <string>

#include "absl/time/time.h"
#include "common/base/retry_advice.h"
#include "gtest/gtest.h"

namespace lockstep::rpc {
namespace {

struct CodePair {
  absl::StatusCode absl_code;
  grpc::StatusCode grpc_code;
};

constexpr CodePair kCodes[] = {
    {absl::StatusCode::kCancelled, grpc::StatusCode::CANCELLED},
    {absl::StatusCode::kUnknown, grpc::StatusCode::UNKNOWN},
    {absl::StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {absl::StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {absl::StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {absl::StatusCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
    {absl::StatusCode::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED},
    {absl::StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {absl::StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
    {absl::StatusCode::kAborted, grpc::StatusCode::ABORTED},
    {absl::StatusCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE},
    {absl::StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED},
    {absl::StatusCode::kInternal, grpc::StatusCode::INTERNAL},
    {absl::StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {absl::StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS},
    {absl::StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED},
};

TEST(StatusConversionTest, EveryCodeSurvivesBothWaysWithMessageAndAdvice) {
  static_assert(std::size(kCodes) == 16);
  for (const CodePair& pair : kCodes) {
    for (const bool retryable : {false, true}) {
      const base::RetryAdvice advice = {.retryable = retryable, .delay = absl::Milliseconds(500)};
      const absl::Status status =
          base::WithRetryAdvice(absl::Status(pair.absl_code, "top_p: 1.5 > 1"), advice);
      const grpc::Status wire = ToGrpcStatus(status);
      EXPECT_EQ(wire.error_code(), pair.grpc_code);
      EXPECT_EQ(wire.error_message(), "top_p: 1.5 > 1");
      EXPECT_EQ(FromGrpcStatus(wire), status);
      EXPECT_EQ(base::GetRetryAdvice(FromGrpcStatus(wire)), advice);
      EXPECT_EQ(FromErrorDetail(ToErrorDetail(status)), status);
    }
  }
}

TEST(StatusConversionTest, SuccessIsSuccess) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_TRUE(FromErrorDetail(ToErrorDetail(absl::OkStatus())).ok());
}

TEST(StatusConversionTest, PlainStatusOfAPeerKeepsTheAdviceOfItsCode) {
  const absl::Status unavailable =
      FromGrpcStatus({grpc::StatusCode::UNAVAILABLE, "connection lost"});
  EXPECT_EQ(unavailable, absl::UnavailableError("connection lost"));
  EXPECT_TRUE(base::GetRetryAdvice(unavailable).retryable);
  EXPECT_FALSE(base::GetRetryAdvice(FromGrpcStatus({grpc::StatusCode::INTERNAL, "bug"})).retryable);
}

TEST(StatusConversionTest, CodesThatGrpcDoesNotDefineAreUnknown) {
  for (const int code : {17, 99, -1}) {
    v1::ErrorDetail detail;
    detail.set_code(code);
    EXPECT_EQ(FromErrorDetail(detail).code(), absl::StatusCode::kUnknown);
  }
  EXPECT_EQ(FromGrpcStatus({grpc::StatusCode::DO_NOT_USE, "odd"}).code(),
            absl::StatusCode::kUnknown);
}

TEST(StatusConversionTest, DetailsThatDoNotFitTheStatusAreIgnored) {
  const grpc::Status garbage(grpc::StatusCode::ABORTED, "a", "\xFF\xFF\xFF");
  EXPECT_EQ(FromGrpcStatus(garbage), absl::AbortedError("a"));
  v1::ErrorDetail other_code;
  other_code.set_code(grpc::StatusCode::UNAVAILABLE);
  other_code.set_retryable(true);
  const grpc::Status replaced(grpc::StatusCode::ABORTED, "a", other_code.SerializeAsString());
  EXPECT_EQ(FromGrpcStatus(replaced), absl::AbortedError("a"));
}

TEST(StatusConversionTest, DelayOfAPeerIsNeverNegativeInfiniteOrAbsurd) {
  v1::ErrorDetail detail;
  detail.set_code(grpc::StatusCode::UNAVAILABLE);
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    detail.set_retry_delay_seconds(seconds);
    EXPECT_EQ(base::GetRetryAdvice(FromErrorDetail(detail)).delay, absl::ZeroDuration());
  }
  detail.set_retry_delay_seconds(1e300);
  EXPECT_EQ(base::GetRetryAdvice(FromErrorDetail(detail)).delay, absl::Hours(1));
}

TEST(StatusConversionTest, MessagesFitIntoTrailersAndAreValidUtf8) {
  const std::string euros = [] {
    std::string text = "x";
    while (text.size() < 100000) text += "\u20ac";
    return text;
  }();
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(euros));
  // Percent-encoded once and in base64 once, both stay below the 8 KiB of trailers.
  EXPECT_LE(3 * wire.error_message().size() + 4 * wire.error_details().size() / 3, 6000u);
  EXPECT_EQ(wire.error_message().substr(wire.error_message().size() - 6), "\u20ac...");
  EXPECT_EQ(ToGrpcStatus(absl::InternalError("bad \xFF byte")).error_message(), "bad \uFFFD byte");
}

}  // namespace
}  // namespace lockstep::rpc
