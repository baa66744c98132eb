// Who looks for broken promises finds them: each planted fault is put into the workers of a real
// cluster, and the mode of `lockstep verify` that is about it must fail, as must a plain comparison
// of answers. The same modes and comparisons hold on a cluster without a fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/cli/verify/modes.h"
#include "services/client/rollout_client.h"
#include "tests/faults/planted_faults.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using cli::VerifyOptions;
using testing::Bits;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateQuietly;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSplit = 64;
constexpr int kDemoBlockTokens = 32;
constexpr int64_t kDemoKvBytesPerToken = 4 * 2 * 2 * 64 * 4;  // layers, k and v, heads, dims, fp32

// Small splits and little KV: cuts, evictions and preemptions come with short prompts. A long
// lease: no worker is lost here, however slow the machine.
ClusterHarness::Options SmallCluster(worker::WorkerHooks hooks) {
  return {.model = "deploy/demo-model",
          .workers = 1,
          .kv_bytes = 2048 * kDemoKvBytesPerToken,
          .split_kv_size = kSplit,
          .chunk_tokens = 2 * kSplit,
          .lease_seconds = 30,
          .reserve_horizon_tokens = 64,
          .worker_hooks = std::move(hooks)};
}

v1::GenerateRequest Request(int prompt_tokens, int new_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i) {
    request.mutable_prompt_ids()->add_ids(16 + (i * 7) % 40);
  }
  request.set_seed(5);
  request.mutable_stop()->set_max_new_tokens(new_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// Answers to one request that was run in ways which must not matter: one element, unless a promise
// is broken.
using Answers = std::set<std::string>;

void AddTo(Answers* answers, const std::vector<absl::StatusOr<v1::GenerateResponse>>& responses) {
  for (const auto& response : responses) {
    ASSERT_TRUE(response.ok()) << response.status();
    answers->insert(Bits(*response));
  }
}

Answers AloneAndInABatch(ClusterHarness* cluster) {
  v1::GenerateRequest request = Request(100, 24);
  Answers answers;
  AddTo(&answers, GenerateQuietly(cluster->stub(), {request}));
  AddTo(&answers,
        GenerateAll(cluster->stub(), std::vector<v1::GenerateRequest>(8, std::move(request))));
  EXPECT_GT(cluster->WorkerMetric(0, "lockstep_worker_batch_sequences_max"), 1);
  return answers;
}

Answers AloneAndBesideGreedyOnes(ClusterHarness* cluster) {
  std::vector<v1::GenerateRequest> requests(8, Request(8, 24));
  for (int i = 1; i < 8; ++i) requests[i].mutable_sampling()->set_temperature(0);
  Answers answers;
  AddTo(&answers, GenerateQuietly(cluster->stub(), {requests[0]}));
  AddTo(&answers, {GenerateAll(cluster->stub(), requests)[0]});
  EXPECT_GT(cluster->WorkerMetric(0, "lockstep_worker_batch_sequences_max"), 1);
  return answers;
}

Answers WithAColdAndAWarmCache(ClusterHarness* cluster) {
  // What is cached ends between two splits.
  constexpr int kCached = 2 * kSplit + kDemoBlockTokens;
  const v1::GenerateRequest request = Request(kCached + 5, 12);
  Answers answers;
  AddTo(&answers, GenerateQuietly(cluster->stub(), {request}));
  AddTo(&answers, GenerateAll(cluster->stub(), {request}));
  const auto warm = GenerateAll(cluster->stub(), {request});
  AddTo(&answers, warm);
  EXPECT_TRUE(warm[0].ok() && warm[0]->samples(0).usage().cached_tokens() == kCached);
  return answers;
}

Answers OneAfterTheOther(ClusterHarness* cluster) {
  Answers answers;
  AddTo(&answers, GenerateQuietly(cluster->stub(), {Request(8, 24), Request(8, 24)}));
  return answers;
}

Answers WholeAndResumed(ClusterHarness* cluster) {
  const v1::GenerateRequest request = Request(8, 24);
  const auto whole = GenerateQuietly(cluster->stub(), {request});
  Answers answers;
  AddTo(&answers, whole);
  if (answers.empty()) return answers;
  std::vector<v1::GenerateRequest> resumed;
  v1::GenerateRequest rest = request;
  for (const char* id = whole[0]->samples(0).token_ids().data(); resumed.size() < 20; id += 4) {
    uint32_t given;
    std::memcpy(&given, id, 4);
    rest.add_generated_ids(given);
    resumed.push_back(rest);
  }
  AddTo(&answers, GenerateQuietly(cluster->stub(), resumed));
  EXPECT_GE(cluster->WorkerMetric(0, "lockstep_worker_resumptions_total"), 20);
  return answers;
}

// Of these only the logprobs.
Answers DrawnAndScored(ClusterHarness* cluster) {
  const v1::GenerateRequest request = Request(8, 24);
  const auto drawn = GenerateQuietly(cluster->stub(), {request})[0];
  EXPECT_TRUE(drawn.ok()) << drawn.status();
  if (!drawn.ok()) return {};
  v1::ScoreRequest score;
  *score.mutable_ids() = request.prompt_ids().ids();
  score.set_from(score.ids_size());
  const std::string& ids = drawn->samples(0).token_ids();
  for (size_t i = 0; i < ids.size(); i += 4) {
    uint32_t id;
    std::memcpy(&id, ids.data() + i, 4);
    score.add_ids(id);
  }
  score.set_temperature(1);
  grpc::ClientContext context;
  v1::ScoreResponse scored;
  const grpc::Status status = cluster->stub()->Score(&context, score, &scored);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {drawn->samples(0).logprobs().raw(), scored.logprobs().raw()};
}

struct Fault {
  const char* name;
  worker::WorkerHooks hooks;
  absl::Status (*mode)(cli::Subject*, const VerifyOptions&);
  Answers (*compare)(ClusterHarness*);
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> Faults() {
  return {
      {"split_by_batch", faults::SplitByBatch(), cli::VerifyMixed, AloneAndInABatch},
      {"segments_by_batch", faults::SegmentsByBatch(), cli::VerifyMixed, AloneAndInABatch},
      {"sampling_branch_by_neighbour", faults::SamplingBranchByNeighbour(), cli::VerifyNeighbours,
       AloneAndBesideGreedyOnes},
      {"stale_prefix_hit", faults::StalePrefixHit(kSplit), cli::VerifyRadixCache,
       WithAColdAndAWarmCache},
      {"noise_keyed_by_step", faults::NoiseKeyedByStep(), cli::VerifyNeighbours, OneAfterTheOther},
      {"resume_off_by_one", faults::ResumeOffByOne(), cli::VerifyPreemption, WholeAndResumed},
      {"logprob_kernel_by_path", faults::LogprobKernelByPath(), cli::VerifyPrefillVsDecode,
       DrawnAndScored},
  };
}

// What a mode says of a cluster, and what it prints.
std::pair<absl::Status, std::string> Verify(const Fault& fault, const ClusterHarness& cluster) {
  client::RolloutClient client({.target = cluster.gateway_address()});
  ::testing::internal::CaptureStdout();
  absl::StatusOr<cli::Subject> subject = cli::Subject::Connect(&client);
  const absl::Status status =
      subject.ok() ? fault.mode(&*subject, {.trials = 4, .run_dir = ""}) : subject.status();
  return {status, ::testing::internal::GetCapturedStdout()};
}

class PlantedFaultsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedFaultsTest, IsCaughtByItsVerifyModeAndByComparingAnswers) {
  ClusterHarness cluster(SmallCluster(GetParam().hooks));
  const absl::Status start = cluster.Start();
  ASSERT_TRUE(start.ok()) << start;

  EXPECT_GT(GetParam().compare(&cluster).size(), 1u) << "the comparison saw nothing";

  const auto [status, printed] = Verify(GetParam(), cluster);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status << "\n" << printed;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not deterministic")) << printed;
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("nothing was proved"))) << printed;
  EXPECT_THAT(printed, HasSubstr("first difference from the quiet run"));
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedFaultsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(NoPlantedFaultTest, TheSameModesAndComparisonsHold) {
  ClusterHarness cluster(SmallCluster({}));
  const absl::Status start = cluster.Start();
  ASSERT_TRUE(start.ok()) << start;
  for (const Fault& fault : Faults()) {
    EXPECT_EQ(fault.compare(&cluster).size(), 1u) << fault.name;
    const auto [status, printed] = Verify(fault, cluster);
    EXPECT_TRUE(status.ok()) << status << "\n" << printed;
  }
}

// A mode that needs cut prompts finds some also where each fits a chunk by itself.
TEST(NoPlantedFaultTest, PrefixIsProvedWithChunksLongerThanItsPrompts) {
  ClusterHarness::Options options = SmallCluster({});
  options.chunk_tokens = 12 * kSplit;
  ClusterHarness cluster(options);
  const absl::Status start = cluster.Start();
  ASSERT_TRUE(start.ok()) << start;
  const auto [status, printed] = Verify({.name = "none", .mode = cli::VerifyPrefix}, cluster);
  EXPECT_TRUE(status.ok()) << status << "\n" << printed;
}

}  // namespace
}  // namespace lockstep
