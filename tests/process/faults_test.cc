// Faults of real processes under load: every request ends, and every answer has the bits of the
// quiet run. Each test asserts that its fault took effect.
#include <signal.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "services/client/generate_batch.h"
#include "services/client/sample_bits.h"
#include "tests/process/local_cluster.h"

namespace lockstep::testing {
namespace {

class FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override { StartCluster({}, 400); }
  void StartCluster(const std::vector<std::string>& flags, int64_t new_tokens) {
    cluster_.reset();
    kinds_.clear();
    expected_.clear();
    auto started = LocalCluster::Start(flags);
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    for (const char* prompt : {"Tell me a story:", "Say it with emoji:", "12+34*2="}) {
      v1::GenerateRequest request;
      request.set_prompt_text(prompt);
      request.set_seed(17);
      request.mutable_stop()->set_max_new_tokens(new_tokens);
      request.mutable_stop()->set_ignore_eos(true);
      request.set_disable_prefix_cache(true);
      auto answer = cluster_->client().Generate(request);
      ASSERT_TRUE(answer.ok()) << answer.status();
      expected_.push_back(answer->samples(0));
      request.set_disable_prefix_cache(false);
      kinds_.push_back(request);
    }
  }

  // Starts a load of each kind in turn.
  std::shared_ptr<client::GenerateBatch> StartLoad(size_t count, size_t at_once) {
    std::vector<v1::GenerateRequest> requests;
    for (size_t i = 0; i < count; ++i) {
      requests.push_back(kinds_[i % kinds_.size()]);
      requests.back().set_routing_key("key " + std::to_string(i % 7));
    }
    return client::GenerateBatch::Start(cluster_->client(), requests, {.in_flight_max = at_once});
  }

  // All workers run something.
  bool WaitBusy() {
    return cli::WaitUntil(
        [&] {
          const auto info = cluster_->client().GetServerInfo();
          if (!info.ok() || info->workers_size() < 2) return false;
          for (const auto& worker : info->workers()) {
            if (worker.running_sequences() < 2) return false;
          }
          return true;
        },
        absl::Seconds(30));
  }

  int64_t RunningSequences() {
    const auto info = cluster_->client().GetServerInfo();
    int64_t running = 0;
    if (!info.ok()) return running;
    for (const auto& worker : info->workers()) running += worker.running_sequences();
    return running;
  }

  bool WaitNewIncarnation(const std::string& worker, uint64_t old) {
    return cli::WaitUntil(
        [&] {
          const uint64_t now = cluster_->IncarnationOf(worker);
          return now != 0 && now != old;
        },
        absl::Seconds(30));
  }

  // Takes the answers; returns how often sequences went on elsewhere.
  int64_t CheckAll(client::GenerateBatch* batch) {
    const auto answers = batch->Wait();
    int64_t resumptions = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_TRUE(answers[i].ok()) << i << ": " << answers[i].status();
      if (!answers[i].ok()) continue;
      const v1::Sample& sample = answers[i]->samples(0);
      resumptions += sample.usage().resumptions();
      EXPECT_EQ(client::FirstDifference(expected_[i % expected_.size()], sample), std::nullopt);
    }
    return resumptions;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::vector<v1::GenerateRequest> kinds_;
  std::vector<v1::Sample> expected_;
};

TEST_F(FaultsTest, AHundredAndFiftyLongSequencesSurviveAKill) {
  StartCluster({"--kv_mib=512"}, 1000);
  const auto batch = StartLoad(160, 160);
  ASSERT_TRUE(cli::WaitUntil([&] { return RunningSequences() >= 150; }, absl::Seconds(30)));
  cluster_->Signal("worker-1", SIGKILL);
  EXPECT_GE(CheckAll(batch.get()), 30);
}

TEST_F(FaultsTest, AStoppedWorkerLosesItsSequencesAndCannotDisturbThemLater) {
  const uint64_t old = cluster_->IncarnationOf("worker-0");
  const auto batch = StartLoad(48, 48);
  EXPECT_TRUE(WaitBusy());
  cluster_->Signal("worker-0", SIGSTOP);
  const int64_t resumptions = CheckAll(batch.get());
  EXPECT_GE(resumptions, 1);

  // It wakes up in the middle of other work, under its old name.
  const auto later = StartLoad(48, 48);
  cluster_->Signal("worker-0", SIGCONT);
  CheckAll(later.get());
  EXPECT_TRUE(WaitNewIncarnation("worker-0", old));
}

TEST_F(FaultsTest, SchedulerAndRouterComeBackInMidRun) {
  const pid_t scheduler = cluster_->PidOf("scheduler");
  const pid_t router = cluster_->PidOf("router");
  const auto batch = StartLoad(96, 32);
  EXPECT_TRUE(WaitBusy());
  cluster_->Signal("scheduler", SIGKILL);
  EXPECT_TRUE(
      cli::WaitUntil([&] { return cluster_->PidOf("scheduler") != scheduler; }, absl::Seconds(10)));
  cluster_->Signal("router", SIGKILL);
  EXPECT_TRUE(
      cli::WaitUntil([&] { return cluster_->PidOf("router") != router; }, absl::Seconds(10)));
  CheckAll(batch.get());
  CheckAll(StartLoad(6, 6).get());
}

// Nothing of the lost answers was seen, so what is asked again has the same bits.
TEST_F(FaultsTest, AGatewayKilledInMidBatchCostsNoAnswerAndNoBit) {
  const auto batch = StartLoad(96, 32);
  EXPECT_TRUE(WaitBusy());
  const size_t done = batch->done_count();
  const pid_t gateway = cluster_->PidOf("gateway");
  cluster_->Signal("gateway", SIGKILL);
  EXPECT_TRUE(
      cli::WaitUntil([&] { return cluster_->PidOf("gateway") != gateway; }, absl::Seconds(10)));
  EXPECT_LT(done, 96u) << "the batch was over before";
  CheckAll(batch.get());
}

}  // namespace
}  // namespace lockstep::testing
