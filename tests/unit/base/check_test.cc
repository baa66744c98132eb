#include "common/base/check.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(CheckTest, HoldingConditionsDoNothingAndEvaluateOnce) {
  int evaluations = 0;
  LOCKSTEP_CHECK(++evaluations == 1) << "not reached";
  LOCKSTEP_CHECK_EQ(++evaluations, 2);
  LOCKSTEP_CHECK_NE(1, 2);
  LOCKSTEP_CHECK_LT(1, 2);
  LOCKSTEP_CHECK_LE(2, 2);
  LOCKSTEP_CHECK_GT(2, 1);
  LOCKSTEP_CHECK_GE(2, 2);
  EXPECT_EQ(evaluations, 2);
}

TEST(CheckDeathTest, FailureNamesTheConditionTheOperandsAndTheContext) {
  const int have = 3;
  EXPECT_DEATH(LOCKSTEP_CHECK(have > 4) << "in block " << 7, "have > 4 in block 7");
  EXPECT_DEATH(LOCKSTEP_CHECK_EQ(have, 4) << "pages", "have == 4 \\(3 vs 4\\) pages");
  EXPECT_DEATH(LOCKSTEP_CHECK_LE(std::string("b"), "a"), "b vs a");
}

TEST(CheckTest, ElseAfterACheckBindsToTheOuterIf) {
  bool outer_else = false;
  if (outer_else)
    LOCKSTEP_CHECK_EQ(1, 2);
  else
    outer_else = true;
  EXPECT_TRUE(outer_else);
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int half, Half(value));
  LOCKSTEP_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status CheckQuarter(int value) {
  LOCKSTEP_RETURN_IF_ERROR(Quarter(value).status());
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ErrorsReturnEarlyAndValuesPass) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
  EXPECT_TRUE(CheckQuarter(4).ok());
  EXPECT_EQ(CheckQuarter(5), absl::InvalidArgumentError("odd"));
}

}  // namespace
}  // namespace lockstep::base
