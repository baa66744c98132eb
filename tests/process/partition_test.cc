// Packets that are dropped. A wire of the test's own lies between one worker and the router, and
// between that worker and the scheduler. Goal: its sequences go on elsewhere with the bits of the
// quiet run, within a lease and a second, and a healed wire brings the worker back.
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "tests/process/lossless_load.h"
#include "tests/process/member_cluster.h"
#include "tests/process/stream_record.h"
#include "tests/support/tcp_proxy.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kVictim[] = "worker-0";
constexpr char kGenerated[] = "lockstep_worker_generated_tokens_total";
constexpr absl::Duration kPatience = absl::Seconds(60);
// So many that streams are in their middle, not at their beginning.
constexpr double kFarTokens = 400;

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return port;
}

class PartitionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = MemberCluster::Start(
        {.cluster = {.model = "deploy/demo-model"},
         // The silence that a router bears is made for the default lease.
         .lease_seconds = 3,
         .edit_worker = [this](const cli::Member& member, config::v1::WorkerConfig* config) {
           if (member.name != kVictim) return;
           to_worker_ = TcpProxy::Start(member.port).value();
           to_scheduler_ = TcpProxy::Start(PortOf(config->scheduler())).value();
           config->set_advertise(absl::StrCat("127.0.0.1:", to_worker_->port()));
           config->set_scheduler(absl::StrCat("127.0.0.1:", to_scheduler_->port()));
         }});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto kinds = QuietKinds(&cluster_->client(), 600);
    ASSERT_TRUE(kinds.ok()) << kinds.status();
    load_ = std::make_unique<StreamLoad>(&cluster_->client(), *kinds, 8);
    ASSERT_TRUE(VictimGenerates());
    life_ = cluster_->IncarnationOf(kVictim);
  }
  void TearDown() override {
    load_.reset();
    cluster_.reset();
  }

  bool VictimGenerates() {
    const double before = cluster_->Metric(kVictim, kGenerated);
    return cli::WaitUntil(
        [&] { return cluster_->Metric(kVictim, kGenerated) > before + kFarTokens; }, kPatience);
  }
  double Moves() { return cluster_->Metric("router", "lockstep_router_resumptions_total"); }
  bool WaitForMoves() {
    return cli::WaitUntil([&] { return Moves() >= 1; }, kPatience);
  }

  std::unique_ptr<TcpProxy> to_worker_;
  std::unique_ptr<TcpProxy> to_scheduler_;
  std::unique_ptr<MemberCluster> cluster_;
  std::unique_ptr<StreamLoad> load_;
  uint64_t life_ = 0;
};

TEST_F(PartitionTest, AWorkerThatTheSchedulerCannotHearLosesItsSequences) {
  to_scheduler_->SetBlackHole(true);
  ASSERT_TRUE(WaitForMoves());
  to_scheduler_->SetBlackHole(false);
  ASSERT_TRUE(cluster_->WaitForNewLife(kVictim, life_));
  ASSERT_TRUE(VictimGenerates());
  ExpectLossless(load_.get(), *cluster_);
  EXPECT_THAT(cluster_->Log(kVictim), HasSubstr("lease_lost"));
}

TEST_F(PartitionTest, AWorkerThatTheRouterCannotHearLosesItsSequences) {
  to_worker_->SetBlackHole(true);
  ASSERT_TRUE(WaitForMoves());
  // What is asked for in the meantime does not hang either.
  const int64_t tokens = load_->tokens();
  ASSERT_TRUE(cli::WaitUntil([&] { return load_->tokens() > tokens + 8000; }, kPatience));
  to_worker_->SetBlackHole(false);
  ASSERT_TRUE(VictimGenerates());
  ExpectLossless(load_.get(), *cluster_);
  // It could renew its lease all the time, so it is the same life that came back.
  EXPECT_EQ(cluster_->IncarnationOf(kVictim), life_);
}

TEST_F(PartitionTest, ACutConnectionMovesSequencesAtOnce) {
  to_worker_->Cut();
  ASSERT_TRUE(WaitForMoves());
  ASSERT_TRUE(VictimGenerates());
  ExpectLossless(load_.get(), *cluster_);
  EXPECT_EQ(cluster_->IncarnationOf(kVictim), life_);
}

}  // namespace
}  // namespace lockstep::testing
