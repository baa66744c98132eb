#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/model/step_driver.h"

// How many GPUs share a model reaches no bit. Ranks have devices of their own where there are
// enough, else they share one.
namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::DrivenSequence;
using ::testing::HasSubstr;
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

int DeviceCount() {
  int count = 0;
  testing::Must(cudaGetDeviceCount(&count));
  return count;
}

using MadeKernels = absl::StatusOr<std::unique_ptr<kernels::KernelSet>>;
using Alter = std::function<MadeKernels(int rank, const std::function<MadeKernels()>& make)>;

absl::StatusOr<LoadedModel> LoadOn(
    int ranks, const ModelOptions& options,
    const Alter& alter = [](int, const std::function<MadeKernels()>& make) { return make(); }) {
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank % DeviceCount());
  const auto group = kernels::cuda::CreatePeerGroup(devices, absl::Seconds(60)).value();
  return LoadModelOnRanks(options, group, [&](int rank) {
    return alter(rank, [&] {
      return kernels::CreateKernelSet(
          {.backend = "cuda", .certificates_path = Certificates(), .collective = group->End(rank)});
    });
  });
}

std::vector<Schedule> Schedules() {
  Schedule alone = {.blocks = Blocks(0, 1, kSequencePages)};
  Schedule cut = alone;
  cut.cuts = {256, 512};
  std::vector<Schedule> schedules = {alone, cut};
  for (const int neighbours : {1, 7, 63, 255}) {
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
    const LoadedModel shared = LoadOn(ranks, options).value();
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
        Shared{.name = "Qwen3_8B", .model = "random:qwen3-8b", .segments = 2, .ranks = {2}},
        Shared{
            .name = "Qwen3_8B_In8", .model = "random:qwen3-8b", .segments = 8, .ranks = {2, 4, 8}},
        Shared{.name = "Qwen3_32B", .model = "random:qwen3-32b", .segments = 8, .ranks = {4, 8}}),
    [](const ::testing::TestParamInfo<Shared>& info) { return info.param.name; });

// Qwen2 has a bias on q, k and v, which each rank adds to its own columns.
TEST(GpuRanksBiasTest, ABiasIsSharedToo) {
  if (const std::string reason = testing::WhyNoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  const testing::TemporaryDirectory temporary;
  const std::string model = temporary.File("model");
  testing::WriteCheckpoint(model, {.vocabulary = 512,
                                   .hidden = 256,
                                   .head_dim = 64,
                                   .ffn = 512,
                                   .positions = 4096,
                                   .family = testing::Family::kQwen2});
  const ModelOptions options = Options({.name = "", .model = model.c_str(), .segments = 2});
  DrivenSequence sequence;
  Trace expected;
  {
    const LoadedModel one =
        LoadModel(options, *kernels::CreateKernelSet(
                               {.backend = "cuda", .certificates_path = Certificates()}))
            .value();
    sequence = testing::Sampled(kPromptTokens, kNewTokens, one.facts.vocabulary);
    expected = testing::Drive(one.executor.get(), sequence, Schedules().front());
  }
  const LoadedModel shared = LoadOn(2, options).value();
  for (const Schedule& schedule : Schedules()) {
    EXPECT_EQ(DifferenceOf(testing::Drive(shared.executor.get(), sequence, schedule), expected), "")
        << schedule.neighbours << " neighbours";
  }
}

// What a rank that cannot load leaves to the others: they wait in kernels and on threads for up to
// 15 minutes, unless they are let go.
class GpuRankLoadTest : public testing::GpuTest {
 protected:
  static ModelOptions Tiny() {
    ModelOptions options = Options({.name = "", .model = "random:qwen3-tiny", .segments = 2});
    options.chunk_tokens = 256;  // Few sizes to certify.
    options.sequences_max = 8;
    return options;
  }
};

// Full before it has packed a layer, or before it takes part in the sizes that all agree on.
class FullDevice final : public faults::ForwardingKernelSet {
 public:
  FullDevice(std::unique_ptr<kernels::KernelSet> inner, bool packs)
      : ForwardingKernelSet(std::move(inner)), packs_(packs) {}

  absl::StatusOr<std::unique_ptr<kernels::LinearWeight>> PackLinear(
      std::span<const kernels::HostTensor> weights, std::span<const kernels::HostTensor> biases,
      const kernels::LinearLayout& layout) override {
    if (!packs_) return absl::ResourceExhaustedError("device 1 is full");
    return ForwardingKernelSet::PackLinear(weights, biases, layout);
  }
  absl::Status Prepare(const kernels::StepBounds&) override {
    return absl::ResourceExhaustedError("device 1 is full");
  }

 private:
  const bool packs_;
};

TEST_F(GpuRankLoadTest, OneThatFailsLetsTheOthersGoWhereverTheyWait) {
  const absl::Status full = absl::ResourceExhaustedError("device 1 is full");
  // Before it has met anybody.
  EXPECT_EQ(LoadOn(2, Tiny(),
                   [&](int rank, const std::function<MadeKernels()>& make) {
                     return rank == 1 ? MadeKernels(full) : make();
                   })
                .status(),
            full);
  for (const bool packs : {false, true}) {
    const auto alter = [&](int rank, const std::function<MadeKernels()>& make) {
      MadeKernels made = make();
      if (rank == 0 || !made.ok()) return made;
      return MadeKernels(std::make_unique<FullDevice>(*std::move(made), packs));
    };
    const absl::Status status = LoadOn(2, Tiny(), alter).status();
    EXPECT_EQ(status.code(), full.code()) << packs;
    EXPECT_THAT(std::string(status.message()), HasSubstr("device 1 is full")) << packs;
  }
  EXPECT_TRUE(LoadOn(2, Tiny()).ok()) << "nothing is left behind";
}

TEST_F(GpuRankLoadTest, OneWhoseDeviceIsFullEndsTheStartWithItsStatus) {
  if (DeviceCount() < 2) GTEST_SKIP() << "needs a device for each of two ranks";
  constexpr size_t kLeft = size_t{1} << 30;  // Less than the KV.
  testing::Must(cudaSetDevice(1));
  size_t free = 0;
  size_t total = 0;
  testing::Must(cudaMemGetInfo(&free, &total));
  {
    const kernels::Buffer taken = testing::DeviceBytes(free - kLeft);
    testing::Must(cudaSetDevice(0));
    const absl::Status status = LoadOn(2, Tiny()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
  EXPECT_TRUE(LoadOn(2, Tiny()).ok());
}

}  // namespace
}  // namespace lockstep::worker
