#include "services/scheduler/worker_registry.h"

#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using testing::Test;

constexpr absl::Duration kLease = absl::Seconds(3);

class WorkerRegistryTest : public Test {
 protected:
  absl::Time At(double seconds) const { return absl::UnixEpoch() + absl::Seconds(seconds); }
  WorkerRegistry registry_{kLease};
};

TEST_F(WorkerRegistryTest, LeaseExpiryEvictsWorkerOnce) {
  registry_.Add(RegistrationOf("a"), At(0));
  EXPECT_TRUE(registry_.TakeExpired(At(2.9)).empty());
  EXPECT_EQ(registry_.TakeExpired(At(3)), std::vector<WorkerName>{NameOf("a")});
  EXPECT_TRUE(registry_.TakeExpired(At(9)).empty());
  EXPECT_EQ(registry_.Find(NameOf("a")), nullptr);
}

TEST_F(WorkerRegistryTest, HeartbeatWithoutProgressBuysNoTime) {
  registry_.Add(RegistrationOf("a"), At(0));
  ASSERT_TRUE(registry_.Renew(NameOf("a"), {.steps = 5}, At(1)).ok());
  ASSERT_TRUE(registry_.Renew(NameOf("a"), {.steps = 5}, At(2)).ok());
  ASSERT_TRUE(registry_.Renew(NameOf("a"), {.steps = 5}, At(3.5)).ok());
  EXPECT_EQ(registry_.TakeExpired(At(4)).size(), 1u);
}

TEST_F(WorkerRegistryTest, ProgressOrIdlenessRenews) {
  registry_.Add(RegistrationOf("a"), At(0));
  ASSERT_TRUE(registry_.Renew(NameOf("a"), {.steps = 1}, At(2)).ok());
  EXPECT_TRUE(registry_.TakeExpired(At(4.9)).empty());
  ASSERT_TRUE(registry_.Renew(NameOf("a"), {.steps = 1, .idle = true}, At(4.9)).ok());
  EXPECT_TRUE(registry_.TakeExpired(At(7.8)).empty());
  EXPECT_EQ(registry_.TakeExpired(At(7.9)).size(), 1u);
}

TEST_F(WorkerRegistryTest, EndedIncarnationIsRefusedForEver) {
  registry_.Add(RegistrationOf("a", 1), At(0));
  ASSERT_EQ(registry_.TakeExpired(At(3)).size(), 1u);
  EXPECT_EQ(registry_.CheckAdd(RegistrationOf("a", 1)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(registry_.CheckAdd(RegistrationOf("a", 2)).ok());
  registry_.Add(RegistrationOf("a", 2), At(4));
  const absl::Status late = registry_.Renew(NameOf("a", 1), {.idle = true}, At(4));
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(late.message().find("expired"), absl::string_view::npos);
}

TEST_F(WorkerRegistryTest, UnknownIncarnationIsNotFoundSoThatItMayRegisterAgain) {
  EXPECT_EQ(registry_.Renew(NameOf("a"), {.idle = true}, At(0)).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(WorkerRegistryTest, SecondProcessUnderALivingNameIsRefused) {
  registry_.Add(RegistrationOf("a", 1), At(0));
  WorkerRegistration other = RegistrationOf("a", 2);
  EXPECT_TRUE(registry_.CheckAdd(other).ok());  // The same address: a restart.
  other.address = "elsewhere:1";
  EXPECT_EQ(registry_.CheckAdd(other).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(WorkerRegistryTest, DrainingWorkerIsNoOther) {
  registry_.Add(RegistrationOf("a"), At(0));
  registry_.Add(RegistrationOf("b"), At(0));
  EXPECT_TRUE(registry_.HasOther(NameOf("a")));
  registry_.SetDraining(NameOf("b"));
  EXPECT_FALSE(registry_.HasOther(NameOf("a")));
  EXPECT_TRUE(registry_.HasOther(NameOf("b")));
}

}  // namespace
}  // namespace lockstep::scheduler
