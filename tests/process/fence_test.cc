// Workers that come back from a stall, and strangers on the port of a dead one. Goal: whatever an
// old life or a foreign process still does, every stream has the bits of the quiet run, no index
// comes twice or is left out, and no gap is longer than a lease and a second.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "tests/process/lossless_load.h"
#include "tests/process/member_cluster.h"
#include "tests/process/stream_record.h"
#include "tests/support/checkpoint_writer.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kModel[] = "deploy/demo-model";
constexpr char kGenerated[] = "lockstep_worker_generated_tokens_total";
constexpr absl::Duration kPatience = absl::Seconds(30);
// So many that streams are in their middle, not at their beginning.
constexpr double kFarTokens = 400;

class FenceTest : public ::testing::Test {
 protected:
  void Start(int workers) {
    auto started = MemberCluster::Start({.cluster = {.model = kModel, .workers = workers}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto kinds = QuietKinds(&cluster_->client(), 600);
    ASSERT_TRUE(kinds.ok()) << kinds.status();
    load_ = std::make_unique<StreamLoad>(&cluster_->client(), *kinds, 9);
  }
  void TearDown() override { load_.reset(); }

  bool GeneratesOn(const std::string& worker) {
    const double before = cluster_->Metric(worker, kGenerated);
    return cli::WaitUntil(
        [&] { return cluster_->Metric(worker, kGenerated) > before + kFarTokens; }, kPatience);
  }
  bool WaitForTokens(int64_t count) {
    const int64_t until = load_->tokens() + count;
    return cli::WaitUntil([&] { return load_->tokens() >= until; }, kPatience);
  }

  std::unique_ptr<MemberCluster> cluster_;
  std::unique_ptr<StreamLoad> load_;
};

TEST_F(FenceTest, AWorkerStoppedPastItsLeaseComesBackAsAnotherLife) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  ASSERT_TRUE(GeneratesOn("worker-0"));
  ASSERT_TRUE(GeneratesOn("worker-1"));
  const uint64_t life = cluster_->IncarnationOf("worker-0");
  cluster_->Signal("worker-0", SIGSTOP);
  ASSERT_TRUE(cli::WaitUntil(
      [&] { return cluster_->Metric("router", "lockstep_router_workers") == 1; }, kPatience));
  ASSERT_TRUE(WaitForTokens(500));
  cluster_->Signal("worker-0", SIGCONT);
  ASSERT_TRUE(cluster_->WaitForNewLife("worker-0", life));
  ASSERT_TRUE(GeneratesOn("worker-0"));
  ASSERT_TRUE(WaitForTokens(500));
  ExpectLossless(load_.get(), *cluster_);
  EXPECT_THAT(cluster_->Log("worker-0"), HasSubstr("lease_lost"));
}

TEST_F(FenceTest, AForeignWorkerOnADeadOnesPortIsNeverUsedWhileAStalledOneComesBack) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  for (const char* worker : {"worker-0", "worker-1", "worker-2"}) {
    ASSERT_TRUE(GeneratesOn(worker)) << worker;
  }
  // Same name, same port, same tokenizer: only the model is another one.
  TemporaryDirectory foreign;
  WriteCheckpoint(foreign.path(), {.vocabulary = 512, .positions = 8192});
  std::filesystem::copy(std::string(kModel) + "/tokenizer.json", foreign.path());
  config::v1::WorkerConfig config = cluster_->WorkerConfigOf("worker-1");
  config.set_model(foreign.path());
  cluster_->SetWorkerConfig("worker-1", config);
  cluster_->Kill("worker-1");
  ASSERT_TRUE(cli::WaitUntil(
      [&] { return cluster_->Metric("router", "lockstep_router_workers") == 2; }, kPatience));
  // A sequence that found two workers dead without a token in between would be a suspect.
  ASSERT_TRUE(WaitForTokens(500));

  const uint64_t life = cluster_->IncarnationOf("worker-0");
  cluster_->Signal("worker-0", SIGSTOP);
  const absl::Time stopped = absl::Now();
  ASSERT_TRUE(cluster_->StartMember("worker-1").ok());
  ASSERT_TRUE(cli::WaitUntil(
      [&] { return cluster_->Log("worker-1").find("register_failed") != std::string::npos; },
      kPatience));
  EXPECT_THAT(cluster_->Log("worker-1"),
              AllOf(HasSubstr("model_digest is "), HasSubstr("weights_digest is ")));
  EXPECT_THAT(cluster_->Log("scheduler"), HasSubstr("registration_refused"));
  ASSERT_TRUE(
      cli::WaitUntil([&] { return absl::Now() - stopped > 3 * cluster_->lease(); }, kPatience));
  cluster_->Signal("worker-0", SIGCONT);
  ASSERT_TRUE(cluster_->WaitForNewLife("worker-0", life));
  ASSERT_TRUE(GeneratesOn("worker-0"));
  ASSERT_TRUE(WaitForTokens(1000));
  ExpectLossless(load_.get(), *cluster_);

  EXPECT_EQ(cluster_->IncarnationOf("worker-1"), 0u);
  for (const char* metric :
       {kGenerated, "lockstep_worker_prefilled_tokens_total", "lockstep_worker_steps_total"}) {
    EXPECT_EQ(cluster_->Metric("worker-1", metric), 0) << metric;
  }
}

}  // namespace
}  // namespace lockstep::testing
