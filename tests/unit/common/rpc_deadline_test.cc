#include "common/rpc/deadline.h"

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace lockstep::rpc {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

TEST(DeadlineTest, EachHopKeepsAMarginBack) {
  CallScope scope = {.deadline = kNow + absl::Seconds(10), .trace_id = "t"};
  for (int hop = 1; hop <= 3; ++hop) {
    scope = ChildScope(scope, kNow).value();
    EXPECT_EQ(scope.deadline, kNow + absl::Seconds(10) - hop * absl::Milliseconds(50));
    EXPECT_EQ(scope.trace_id, "t");
  }
}

TEST(DeadlineTest, MarginOfAShortBudgetIsAPartOfIt) {
  const CallScope scope = {.deadline = kNow + absl::Milliseconds(10)};
  EXPECT_EQ(ChildScope(scope, kNow)->deadline, kNow + absl::Milliseconds(9));
}

TEST(DeadlineTest, NothingLeftIsDeadlineExceeded) {
  const CallScope scope = {.deadline = kNow};
  EXPECT_EQ(ChildScope(scope, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ChildScope(scope, kNow + absl::Seconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(DeadlineTest, NoDeadlineStaysNoneAndIsRefusedWhereOneIsRequired) {
  EXPECT_EQ(ChildScope({}, kNow)->deadline, absl::InfiniteFuture());
  EXPECT_EQ(CheckHasDeadline({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckHasDeadline({.deadline = kNow}).ok());
}

// gRPC ends the process over an illegal header value; a trace id may come from a trainer.
TEST(DeadlineTest, TraceIdThatIsNoHeaderValueIsNotSent) {
  for (const std::string& trace_id :
       {std::string("a b"), std::string("a\n"), std::string("\xC3\xA9"), std::string(200, 'a')}) {
    grpc::ClientContext context;
    ApplyScope({.trace_id = trace_id}, &context);
    EXPECT_EQ(context.deadline(), std::chrono::system_clock::time_point::max());
  }
}

}  // namespace
}  // namespace lockstep::rpc
