#include <algorithm>
#include <map>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/model/transformer_executor.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/model/step_driver.h"

// A whole model on the device: whatever a step holds beside a sequence, however its prompt was cut
// and wherever its KV lies, its ids and logprob bits are those of running it alone.
namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::DrivenSequence;
using testing::Schedule;
using testing::Trace;

// More than two splits, and an end inside a block and a page.
constexpr int kPromptTokens = 601;
constexpr int kNewTokens = 40;
constexpr int kSequencePages = 11;  // Of 64 tokens.

struct NamedModel {
  const char* name;
  const char* model;
  int segments = 1;
  bool captures = true;
  bool portable = false;  // Kernels of any GPU.
};
void PrintTo(const NamedModel& model, std::ostream* out) { *out << model.name; }

// Each model is loaded and its layers certified once, for all cases.
LoadedModel& Loaded(const NamedModel& named) {
  static std::map<std::string, LoadedModel> models;
  const std::string key = absl::StrCat(named.name, named.captures ? "" : " eager");
  const auto found = models.find(key);
  if (found != models.end()) return found->second;
  auto kernels =
      kernels::CreateKernelSet({.backend = "cuda",
                                .certificates_path = ::testing::TempDir() + "lockstep_certificates",
                                .portable_kernels = named.portable});
  LOCKSTEP_CHECK(kernels.ok()) << kernels.status().ToString();
  absl::StatusOr<LoadedModel> model = LoadModel({.model = named.model,
                                                 .reduction_segments = named.segments,
                                                 .split_kv_size = 256,
                                                 .kv_bytes = int64_t{6} << 30,
                                                 .sequences_max = 256,
                                                 .chunk_tokens = 2048,
                                                 .context_tokens_max = 4096,
                                                 .logits_bytes_max = size_t{1} << 30,
                                                 .captures = named.captures},
                                                *std::move(kernels));
  LOCKSTEP_CHECK(model.ok()) << model.status().ToString();
  return models.emplace(key, *std::move(model)).first->second;
}

int64_t Replays(const LoadedModel& model) {
  return static_cast<const TransformerExecutor&>(*model.executor).replays();
}

class DeviceModelTest : public ::testing::TestWithParam<NamedModel> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::WhyNoDevice(); !reason.empty()) GTEST_SKIP() << reason;
    model_ = &Loaded(GetParam());
    sequence_ = testing::Sampled(kPromptTokens, kNewTokens, model_->facts.vocabulary);
    expected_ = testing::Drive(model_->executor.get(), sequence_, Alone());
  }
  static Schedule Alone() { return {.blocks = Blocks(0, 1, kSequencePages)}; }

  LoadedModel* model_ = nullptr;
  DrivenSequence sequence_;
  Trace expected_;
};

// Weights are drawn on the device there, and digested from what it holds.
TEST_P(DeviceModelTest, DrawnWeightsAreThoseOfTheHost) {
  const ModelOptions options = {.model = GetParam().model, .kv_bytes = int64_t{64} << 20};
  const auto on_host =
      LoadModel(options, *kernels::CreateKernelSet({.backend = "cpu", .threads = 0}));
  ASSERT_TRUE(on_host.ok()) << on_host.status();
  EXPECT_EQ(model_->weights_digest, on_host->weights_digest);
}

TEST_P(DeviceModelTest, RepeatsItselfAndSaysDifferentThings) {
  ASSERT_EQ(expected_.ids.size(), size_t{kNewTokens});
  ASSERT_EQ(expected_.scored.raw.size(), size_t{kPromptTokens - 1});
  EXPECT_GT(std::set<int32_t>(expected_.ids.begin(), expected_.ids.end()).size(), size_t{20});
  for (int repeat = 0; repeat < 5; ++repeat) {
    EXPECT_EQ(DifferenceOf(testing::Drive(model_->executor.get(), sequence_, Alone()), expected_),
              "");
  }
}

TEST_P(DeviceModelTest, PrefillCutsDoNotShow) {
  const std::vector<std::vector<int>> cuts = {
      {256, 512}, {1}, {63, 64, 65}, {600}, {7, 127, 129, 255, 257}};
  for (const std::vector<int>& cut : cuts) {
    Schedule schedule = Alone();
    schedule.cuts = cut;
    EXPECT_EQ(DifferenceOf(testing::Drive(model_->executor.get(), sequence_, schedule), expected_),
              "")
        << "first cut " << cut.front();
  }
}

TEST_P(DeviceModelTest, DecodingThePromptTokenByTokenEqualsPrefill) {
  Schedule schedule = Alone();
  schedule.cuts.resize(kPromptTokens - 1);
  std::iota(schedule.cuts.begin(), schedule.cuts.end(), 1);
  const Trace trace = testing::Drive(model_->executor.get(), sequence_, schedule);
  EXPECT_EQ(trace.rows_step_max, 1);
  EXPECT_EQ(DifferenceOf(trace, expected_), "");
}

TEST_P(DeviceModelTest, PagesAndPoisonDoNotShow) {
  Schedule schedule;
  schedule.blocks = Blocks(90, -7, kSequencePages);
  for (int block = 0; block < 96; ++block) {
    if (std::count(schedule.blocks.begin(), schedule.blocks.end(), block) == 0) {
      schedule.poisoned.push_back(block);
    }
  }
  ASSERT_GE(model_->executor->kv_block_count(), 96);
  for (const int32_t block : schedule.blocks) model_->executor->PoisonKvBlock(block);
  EXPECT_EQ(DifferenceOf(testing::Drive(model_->executor.get(), sequence_, schedule), expected_),
            "");
}

TEST_P(DeviceModelTest, NeighboursDoNotShow) {
  for (const int neighbours : {1, 2, 7, 15, 16, 31, 63, 64, 127, 255}) {
    Schedule schedule = Alone();
    schedule.cuts = {64};
    schedule.neighbours = neighbours;
    schedule.neighbour_blocks = Blocks(kSequencePages, 1, 2 * neighbours);
    const Trace trace = testing::Drive(model_->executor.get(), sequence_, schedule);
    EXPECT_EQ(trace.sequences_step_max, neighbours + 1);
    EXPECT_EQ(DifferenceOf(trace, expected_), "") << neighbours << " neighbours";
  }
}

// A decode step is enqueued op by op when its row count is seen for the first time, and captured
// when it is seen again.
TEST_P(DeviceModelTest, CapturedStepsGiveTheBitsOfEnqueuedOnes) {
  NamedModel eager = GetParam();
  eager.captures = false;
  LoadedModel& never = Loaded(eager);
  for (const int neighbours : {0, 2, 36, 255}) {
    Schedule schedule = testing::BesideDrawing(Alone(), neighbours, kSequencePages);
    const int64_t replays = Replays(*model_);
    const Trace captured = testing::Drive(model_->executor.get(), sequence_, schedule);
    EXPECT_GE(Replays(*model_) - replays, kNewTokens - 3);
    EXPECT_EQ(DifferenceOf(captured, expected_), "") << neighbours << " neighbours";
    EXPECT_EQ(DifferenceOf(testing::Drive(never.executor.get(), sequence_, schedule), captured),
              "");
  }
  EXPECT_EQ(Replays(never), 0);
}

TEST_P(DeviceModelTest, RunningAheadDoesNotShow) {
  for (const int neighbours : {0, 7, 100}) {
    Schedule schedule = testing::BesideDrawing(Alone(), neighbours, kSequencePages);
    schedule.cuts = {256};
    schedule.ahead = true;
    EXPECT_EQ(DifferenceOf(testing::Drive(model_->executor.get(), sequence_, schedule), expected_),
              "")
        << neighbours << " neighbours";
  }
}

TEST_P(DeviceModelTest, PenaltiesCountWhatIsStillBeingDrawn) {
  const DrivenSequence penalised = testing::Penalised(sequence_);
  const Trace expected = testing::Drive(model_->executor.get(), penalised, Alone());
  EXPECT_NE(expected.ids, expected_.ids);
  for (const int neighbours : {0, 7, 100}) {
    Schedule schedule = testing::BesideDrawing(Alone(), neighbours, kSequencePages);
    schedule.ahead = true;
    EXPECT_EQ(DifferenceOf(testing::Drive(model_->executor.get(), penalised, schedule), expected),
              "")
        << neighbours << " neighbours";
  }
}

TEST_P(DeviceModelTest, ScoringAnAnswerGivesTheBitsThatDrawingItGave) {
  const LogprobBlock scored =
      testing::Score(model_->executor.get(), sequence_, expected_.ids, Alone());
  LogprobBlock generated = expected_.scored;
  generated.raw.insert(generated.raw.end(), expected_.drawn.raw.begin(), expected_.drawn.raw.end());
  EXPECT_EQ(scored.raw, generated.raw);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DeviceModelTest,
    ::testing::Values(
        NamedModel{.name = "Tiny", .model = "random:qwen3-tiny"},
        NamedModel{.name = "TinyTwoSegments", .model = "random:qwen3-tiny", .segments = 2},
        NamedModel{.name = "TinyPortable", .model = "random:qwen3-tiny", .portable = true},
        NamedModel{.name = "Qwen3Tied", .model = "random:qwen3-0.6b"}),
    [](const ::testing::TestParamInfo<NamedModel>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::worker
