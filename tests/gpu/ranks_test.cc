#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "gtest/gtest.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/model/step_driver.h"

// How many GPUs share a model reaches no bit. Ranks have devices of their own where there are
// enough, else they share one.
namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::DrivenSequence;
using testing::Schedule;
using testing::Trace;

constexpr int kPromptTokens = 601;
constexpr int kNewTokens = 40;
constexpr int kSequencePages = 11;  // Of 64 tokens.

struct Shared {
  const char* name;
  const char* model;
  int segments = 1;
  std::vector<int> ranks;
};
void PrintTo(const Shared& shared, std::ostream* out) { *out << shared.name; }

ModelOptions Options(const Shared& shared) {
  return {.model = shared.model,
          .reduction_segments = shared.segments,
          .split_kv_size = 256,
          .kv_bytes = int64_t{4} << 30,
          .sequences_max = 256,
          .chunk_tokens = 2048,
          .context_tokens_max = 4096,
          .logits_bytes_max = size_t{256} << 20};
}

std::string Certificates() { return ::testing::TempDir() + "lockstep_ranks_certificates"; }

LoadedModel LoadOn(int ranks, const ModelOptions& options) {
  int count = 0;
  testing::Must(cudaGetDeviceCount(&count));
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank % count);
  const auto group = kernels::cuda::CreatePeerGroup(devices, absl::Seconds(60)).value();
  auto model = LoadModelOnRanks(options, group, [&](int rank) {
    return kernels::CreateKernelSet(
        {.backend = "cuda", .certificates_path = Certificates(), .collective = group->End(rank)});
  });
  LOCKSTEP_CHECK(model.ok()) << model.status().ToString();
  return *std::move(model);
}

std::vector<Schedule> Schedules() {
  Schedule alone = {.blocks = Blocks(0, 1, kSequencePages)};
  Schedule cut = alone;
  cut.cuts = {256, 512};
  std::vector<Schedule> schedules = {alone, cut};
  for (const int neighbours : {1, 7, 63, 200}) {
    Schedule crowded = cut;
    crowded.neighbours = neighbours;
    crowded.neighbour_blocks = Blocks(kSequencePages, 1, 2 * neighbours);
    crowded.neighbours_decode = true;  // As captured.
    crowded.ahead = true;
    schedules.push_back(crowded);
  }
  return schedules;
}

class GpuRanksTest : public ::testing::TestWithParam<Shared> {
  void SetUp() override {
    if (const std::string reason = testing::WhyNoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(GpuRanksTest, TheirNumberDoesNotShow) {
  const ModelOptions options = Options(GetParam());
  DrivenSequence sequence;
  Trace expected;
  LogprobBlock scored;
  base::Digest128 digest;
  {
    const LoadedModel one =
        LoadModel(options, *kernels::CreateKernelSet(
                               {.backend = "cuda", .certificates_path = Certificates()}))
            .value();
    digest = one.weights_digest;
    sequence = testing::Sampled(kPromptTokens, kNewTokens, one.facts.vocabulary);
    expected = testing::Drive(one.executor.get(), sequence, Schedules().front());
    scored = testing::Score(one.executor.get(), sequence, expected.ids, Schedules().front());
  }
  ASSERT_EQ(expected.ids.size(), size_t{kNewTokens});
  for (const int ranks : GetParam().ranks) {
    const LoadedModel shared = LoadOn(ranks, options);
    EXPECT_EQ(shared.weights_digest, digest);
    for (const Schedule& schedule : Schedules()) {
      EXPECT_EQ(DifferenceOf(testing::Drive(shared.executor.get(), sequence, schedule), expected),
                "")
          << ranks << " ranks, " << schedule.neighbours << " neighbours";
    }
    EXPECT_EQ(DifferenceOf(testing::Score(shared.executor.get(), sequence, expected.ids,
                                          Schedules().front()),
                           scored),
              "");
    EXPECT_TRUE(shared.executor->health().ok()) << shared.executor->health();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, GpuRanksTest,
    ::testing::Values(
        Shared{.name = "Tiny", .model = "random:qwen3-tiny", .segments = 4, .ranks = {2, 4}},
        Shared{.name = "Qwen3_0_6B", .model = "random:qwen3-0.6b", .segments = 8, .ranks = {2}},
        Shared{.name = "Qwen3_8B", .model = "random:qwen3-8b", .segments = 2, .ranks = {2}}),
    [](const ::testing::TestParamInfo<Shared>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::worker
