#include "services/scheduler/fingerprint_gate.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(FingerprintGateTest, NamesEveryDifferingFieldAndBothValues) {
  const FingerprintGate gate(ContractOf("m1"));
  Contract other = ContractOf("m2");
  other.weights_digest = "w2";
  const std::string message(gate.Compare(other).message());
  EXPECT_THAT(message, HasSubstr("model_digest is \"m2\" here, \"m1\" in the cluster"));
  EXPECT_THAT(message, HasSubstr("weights_digest is \"w2\" here, \"w1\" in the cluster"));
  EXPECT_THAT(message, Not(HasSubstr("backend")));
}

TEST(FingerprintGateTest, ComparesWeightVersion) {
  const FingerprintGate gate(ContractOf());
  Contract other = ContractOf();
  other.weight_version = base::WeightVersion(2);
  EXPECT_EQ(gate.Compare(other).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FingerprintGateTest, FieldThatOnlyOneSideHasIsADifference) {
  const FingerprintGate gate(ContractOf());
  Contract more = ContractOf();
  more.fields.push_back({"new_field", "1"});
  EXPECT_THAT(std::string(gate.Compare(more).message()), HasSubstr("new_field is \"1\" here"));
  Contract fewer = ContractOf();
  fewer.fields.pop_back();
  EXPECT_FALSE(gate.Compare(fewer).ok());
}

TEST(FingerprintGateTest, FirstWorkerSetsTheContractAndOthersMayReplaceItOnlyWhenAllowed) {
  FingerprintGate gate(std::nullopt);
  using Decision = FingerprintGate::Decision;
  EXPECT_EQ(*gate.Decide(ContractOf("m1"), false), Decision::kFirst);
  gate.Set(ContractOf("m1"));
  EXPECT_EQ(*gate.Decide(ContractOf("m1"), false), Decision::kSame);
  EXPECT_FALSE(gate.Decide(ContractOf("m2"), false).ok());
  EXPECT_EQ(*gate.Decide(ContractOf("m2"), true), Decision::kReplaces);
}

}  // namespace
}  // namespace lockstep::scheduler
