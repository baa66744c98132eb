// A worker whose device hangs in the middle of a step. Goal: its streams go on elsewhere without a
// lost bit, and the process ends by itself, asked to or not, although its engine's thread never
// comes back.
#include <signal.h>

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "tests/process/lossless_load.h"
#include "tests/process/member_cluster.h"
#include "tests/process/stream_record.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

class HungDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = MemberCluster::Start({.cluster = {.model = "deploy/demo-model", .workers = 2},
                                         .programs = {{"worker-0", HANGING_WORKER}}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto kinds = QuietKinds(&cluster_->client(), 600);
    ASSERT_TRUE(kinds.ok()) << kinds.status();
    load_ = std::make_unique<StreamLoad>(&cluster_->client(), *kinds, 9);
    ASSERT_TRUE(cli::WaitUntil(
        [&] { return cluster_->Metric("worker-0", "lockstep_worker_sequences_running") > 0; },
        kPatience));
    cluster_->Signal("worker-0", SIGUSR1);
  }
  void TearDown() override { load_.reset(); }

  bool WaitForEnd() {
    return cli::WaitUntil([&] { return cluster_->Ended("worker-0").has_value(); }, kPatience);
  }

  std::unique_ptr<MemberCluster> cluster_;
  std::unique_ptr<StreamLoad> load_;
};

TEST_F(HungDeviceTest, ItsProcessEndsByItselfAfterItsLease) {
  ASSERT_TRUE(WaitForEnd()) << cluster_->Log("worker-0");
  EXPECT_EQ(cluster_->Ended("worker-0"), "exit code 1");
  EXPECT_THAT(cluster_->Log("worker-0"),
              AllOf(HasSubstr("lease_lost"), HasSubstr("engine_hung"),
                    HasSubstr("the engine has made no progress for 4s")));
  ExpectLossless(load_.get(), *cluster_);
}

// Well before a drain has to end.
TEST_F(HungDeviceTest, ItsProcessEndsWhenItIsToldToToo) {
  cluster_->Signal("worker-0", SIGTERM);
  ASSERT_TRUE(WaitForEnd()) << cluster_->Log("worker-0");
  EXPECT_EQ(cluster_->Ended("worker-0"), "exit code 1");
  EXPECT_THAT(cluster_->Log("worker-0"), AllOf(HasSubstr("draining"), HasSubstr("engine_hung")));
  ExpectLossless(load_.get(), *cluster_);
}

}  // namespace
}  // namespace lockstep::testing
