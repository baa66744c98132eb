#include "services/worker/model/transformer_executor.h"

#include <fstream>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/model/step_driver.h"

// Whatever a step holds beside a sequence, however its prompt was cut and wherever its KV lies, its
// ids and logprob bits are those of running it alone.
namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::DrivenSequence;
using testing::Schedule;
using testing::TinyModel;
using testing::Trace;

constexpr int kPromptTokens = 150;
constexpr int kNewTokens = 24;
constexpr int kSequenceBlocks = 6;  // Of 32 tokens.

LoadedModel Load(const std::string& directory, ModelOptions options, int threads = 1) {
  options.model = directory;
  auto kernels = kernels::CreateKernelSet({.backend = "cpu", .threads = threads});
  LOCKSTEP_CHECK(kernels.ok()) << kernels.status().ToString();
  absl::StatusOr<LoadedModel> model = LoadModel(options, *std::move(kernels));
  LOCKSTEP_CHECK(model.ok()) << model.status().ToString();
  return *std::move(model);
}

ModelOptions SmallOptions() {
  return {.split_kv_size = 64, .kv_bytes = 24 << 20, .sequences_max = 40, .chunk_tokens = 320};
}

Schedule Alone() { return {.blocks = Blocks(0, 1, kSequenceBlocks)}; }

struct NamedModel {
  std::string name;
  TinyModel tiny;
  std::string directory;  // Instead of `tiny`.
  int segments = 1;
};

void PrintTo(const NamedModel& model, std::ostream* out) { *out << model.name; }

class InvarianceTest : public ::testing::TestWithParam<NamedModel> {
 protected:
  InvarianceTest() {
    directory_ = GetParam().directory;
    if (directory_.empty()) {
      directory_ = temporary_.File("model");
      testing::WriteCheckpoint(directory_, GetParam().tiny);
    }
    options_ = SmallOptions();
    options_.reduction_segments = GetParam().segments;
    model_ = Load(directory_, options_);
    sequence_ = testing::Sampled(kPromptTokens, kNewTokens, model_.facts.vocabulary);
    expected_ = testing::Drive(model_.executor.get(), sequence_, Alone());
  }

  testing::TemporaryDirectory temporary_;
  std::string directory_;
  ModelOptions options_;
  LoadedModel model_;
  DrivenSequence sequence_;
  Trace expected_;
};

TEST_P(InvarianceTest, RepeatsItself) {
  ASSERT_EQ(expected_.ids.size(), size_t{kNewTokens});
  ASSERT_EQ(expected_.scored.raw.size(), size_t{kPromptTokens - 1});
  // A model that says the same whatever it is asked would prove nothing.
  EXPECT_GT(std::set<int32_t>(expected_.ids.begin(), expected_.ids.end()).size(), size_t{6});
  EXPECT_EQ(expected_.drawn.top_ids.size(), size_t{3 * kNewTokens});
  EXPECT_EQ(expected_.drawn.chosen_logprobs.size(), size_t{2 * kNewTokens});
  EXPECT_EQ(DifferenceOf(testing::Drive(model_.executor.get(), sequence_, Alone()), expected_), "");
}

TEST_P(InvarianceTest, PrefillCutsDoNotShow) {
  const std::vector<std::vector<int>> cuts = {
      {64, 128}, {1}, {31, 32, 33}, {149}, {7, 63, 65, 127}};
  for (const std::vector<int>& cut : cuts) {
    Schedule schedule = Alone();
    schedule.cuts = cut;
    EXPECT_EQ(DifferenceOf(testing::Drive(model_.executor.get(), sequence_, schedule), expected_),
              "")
        << "first cut " << cut.front();
  }
}

TEST_P(InvarianceTest, DecodingThePromptTokenByTokenEqualsPrefill) {
  Schedule schedule = Alone();
  schedule.cuts.resize(kPromptTokens - 1);
  std::iota(schedule.cuts.begin(), schedule.cuts.end(), 1);
  const Trace trace = testing::Drive(model_.executor.get(), sequence_, schedule);
  EXPECT_EQ(trace.rows_step_max, 1);
  EXPECT_EQ(DifferenceOf(trace, expected_), "");
}

TEST_P(InvarianceTest, BlockPlacementAndPoisonedBlocksDoNotShow) {
  Schedule schedule;
  schedule.blocks = Blocks(60, -7, kSequenceBlocks);
  for (int block = 0; block < 64; ++block) {
    if (std::count(schedule.blocks.begin(), schedule.blocks.end(), block) == 0) {
      schedule.poisoned.push_back(block);
    }
  }
  ASSERT_GE(model_.executor->kv_block_count(), 64);
  // The sequence's own blocks hold NaN beyond what it has written.
  for (const int32_t block : schedule.blocks) model_.executor->PoisonKvBlock(block);
  EXPECT_EQ(DifferenceOf(testing::Drive(model_.executor.get(), sequence_, schedule), expected_),
            "");
}

TEST_P(InvarianceTest, NeighboursDoNotShow) {
  for (const int neighbours : {1, 2, 7, 32}) {
    Schedule schedule = Alone();
    schedule.cuts = {64};
    schedule.neighbours = neighbours;
    schedule.neighbour_blocks = Blocks(kSequenceBlocks, 1, 2 * neighbours);
    const Trace trace = testing::Drive(model_.executor.get(), sequence_, schedule);
    EXPECT_EQ(trace.sequences_step_max, neighbours + 1);
    EXPECT_EQ(DifferenceOf(trace, expected_), "") << neighbours << " neighbours";
  }
}

TEST_P(InvarianceTest, RunningAheadDoesNotShow) {
  for (const int neighbours : {0, 5}) {
    Schedule schedule = Alone();
    schedule.cuts = {64};
    schedule.ahead = true;
    schedule.neighbours = neighbours;
    schedule.neighbour_blocks = Blocks(kSequenceBlocks, 1, 2 * neighbours);
    EXPECT_EQ(DifferenceOf(testing::Drive(model_.executor.get(), sequence_, schedule), expected_),
              "");
  }
}

TEST_P(InvarianceTest, PenaltiesCountWhatIsStillBeingDrawn) {
  const DrivenSequence penalised = testing::Penalised(sequence_);
  const Trace expected = testing::Drive(model_.executor.get(), penalised, Alone());
  EXPECT_NE(expected.ids, expected_.ids);
  // One row of logits at a time, so that a step draws in several pieces.
  ModelOptions options = options_;
  options.logits_bytes_max = 1;
  const LoadedModel pieces = Load(directory_, options);
  for (const LoadedModel* model : {&std::as_const(model_), &pieces}) {
    for (const int neighbours : {0, 5}) {
      Schedule schedule = testing::BesideDrawing(Alone(), neighbours, kSequenceBlocks);
      schedule.ahead = true;
      EXPECT_EQ(DifferenceOf(testing::Drive(model->executor.get(), penalised, schedule), expected),
                "")
          << neighbours << " neighbours";
    }
  }
}

TEST_P(InvarianceTest, ScoringAnAnswerGivesTheBitsThatDrawingItGave) {
  const LogprobBlock scored =
      testing::Score(model_.executor.get(), sequence_, expected_.ids, Alone());
  ASSERT_EQ(scored.raw.size(), size_t{kPromptTokens - 1 + kNewTokens});
  LogprobBlock generated = expected_.scored;
  generated.raw.insert(generated.raw.end(), expected_.drawn.raw.begin(), expected_.drawn.raw.end());
  EXPECT_EQ(scored.raw, generated.raw);
  const std::vector<float> tail(scored.scaled.end() - kNewTokens, scored.scaled.end());
  EXPECT_EQ(tail, expected_.drawn.scaled);
}

TEST_P(InvarianceTest, PiecesOfTheLogitsDoNotShow) {
  ModelOptions options = options_;
  options.logits_bytes_max = 1;  // One row at a time.
  const LoadedModel pieces = Load(directory_, options);
  Schedule schedule = Alone();
  schedule.neighbours = 4;
  schedule.neighbour_blocks = Blocks(kSequenceBlocks, 1, 8);
  EXPECT_EQ(DifferenceOf(testing::Drive(pieces.executor.get(), sequence_, schedule), expected_),
            "");
}

TEST_P(InvarianceTest, ThreadsDoNotShow) {
  const LoadedModel threaded = Load(directory_, options_, 3);
  EXPECT_EQ(DifferenceOf(testing::Drive(threaded.executor.get(), sequence_, Alone()), expected_),
            "");
}

INSTANTIATE_TEST_SUITE_P(
    Models, InvarianceTest,
    ::testing::Values(
        NamedModel{.name = "Bf16", .tiny = {.seed = 3}},
        NamedModel{.name = "F32Tied",
                   .tiny = {.seed = 4, .stored = testing::StoredType::kF32, .tied = true}},
        NamedModel{.name = "TwoSegments", .tiny = {.seed = 3}, .segments = 2},
        NamedModel{.name = "Qwen2",
                   .tiny = {.seed = 5, .head_dim = 16, .family = testing::Family::kQwen2}},
        NamedModel{.name = "DemoModel", .directory = "deploy/demo-model"}),
    [](const ::testing::TestParamInfo<NamedModel>& info) { return info.param.name; });

class TransformerExecutorTest : public ::testing::Test {
 protected:
  LoadedModel LoadTiny(const TinyModel& tiny, const ModelOptions& options) {
    testing::WriteCheckpoint(temporary_.File("model"), tiny);
    return Load(temporary_.File("model"), options);
  }
  testing::TemporaryDirectory temporary_;
};

TEST_F(TransformerExecutorTest, NanInOneSequenceFailsItAloneAndLeavesItsNeighboursBits) {
  const LoadedModel model = LoadTiny({}, SmallOptions());
  const std::vector<int32_t> tokens = testing::RandomIds(1, 21, 320);
  const std::vector<int32_t> blocks = {0, 1};
  StepSequence healthy;
  healthy.tokens = std::span<const int32_t>(tokens).subspan(3);
  healthy.blocks = std::span<const int32_t>(blocks).subspan(1);
  healthy.sample = true;
  healthy.sampling.position = 18;
  StepSequence sick;
  sick.tokens = std::span<const int32_t>(tokens).first(20);
  sick.blocks = std::span<const int32_t>(blocks).first(1);
  std::vector<StepSequenceResult> alone;
  ASSERT_TRUE(model.executor->Execute({&healthy, 1}, &alone).ok());
  std::vector<StepSequenceResult> results;
  ASSERT_TRUE(model.executor->Execute({&sick, 1}, &results).ok());

  model.executor->PoisonKvBlock(0);
  sick.tokens = std::span<const int32_t>(tokens).subspan(20);
  sick.position = 20;
  sick.score_targets = std::span<const int32_t>(tokens).first(1);
  sick.sample = true;
  sick.sampling.position = 21;
  const std::vector<StepSequence> both = {sick, healthy};
  ASSERT_TRUE(model.executor->Execute(both, &results).ok());
  EXPECT_EQ(results[0].error, kernels::SampleError::kNonFiniteLogits);
  EXPECT_EQ(results[0].sampled_id, -1);
  EXPECT_TRUE(results[0].sampled.raw.empty());
  EXPECT_EQ(results[1].error, kernels::SampleError::kNone);
  EXPECT_EQ(results[1].sampled_id, alone[0].sampled_id);
  EXPECT_EQ(DifferenceOf(results[1].sampled, alone[0].sampled), "");
}

TEST_F(TransformerExecutorTest, GivesOnlyWhatWasAskedFor) {
  const LoadedModel model = LoadTiny({}, SmallOptions());
  const std::vector<int32_t> tokens = testing::RandomIds(1, 9, 320);
  const std::vector<int32_t> blocks = {0};
  StepSequence sequence;
  sequence.tokens = tokens;
  sequence.blocks = blocks;
  std::vector<StepSequenceResult> results;
  ASSERT_TRUE(model.executor->Execute({&sequence, 1}, &results).ok());
  EXPECT_EQ(results[0].sampled_id, -1);

  sequence.sample = true;
  sequence.logprobs = false;
  sequence.score_begin = 4;
  sequence.score_targets = std::span<const int32_t>(tokens).subspan(5, 2);
  sequence.top_count = 5;
  sequence.entropy = true;
  ASSERT_TRUE(model.executor->Execute({&sequence, 1}, &results).ok());
  EXPECT_GE(results[0].sampled_id, 0);
  EXPECT_TRUE(results[0].sampled.raw.empty());
  EXPECT_EQ(results[0].scored.raw.size(), size_t{2});
  EXPECT_EQ(results[0].scored.scaled, results[0].scored.raw);
  EXPECT_TRUE(results[0].scored.top_ids.empty());
  EXPECT_TRUE(results[0].scored.entropy.empty());

  sequence.score_details = true;
  ASSERT_TRUE(model.executor->Execute({&sequence, 1}, &results).ok());
  EXPECT_EQ(results[0].scored.top_ids.size(), size_t{10});
  EXPECT_EQ(results[0].scored.entropy.size(), size_t{2});
}

TEST_F(TransformerExecutorTest, NeverDrawsIdsBeyondTheTokenizer) {
  ModelOptions options = SmallOptions();
  options.vocabulary_sampled = 3;
  const LoadedModel model = LoadTiny({}, options);
  DrivenSequence sequence = testing::Sampled(kPromptTokens, kNewTokens, 320);
  sequence.sampling.temperature = 100;
  sequence.new_tokens = 40;
  const Trace trace = testing::Drive(model.executor.get(), sequence, Alone());
  EXPECT_THAT(trace.ids, ::testing::Each(::testing::Lt(3)));
}

int64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// All logits of one step would take 82 MB; in pieces they take 2 MB, allocated at the start.
TEST_F(TransformerExecutorTest, ScoringALongPromptNeedsNoMoreMemory) {
  constexpr int kTokens = 4096;
  constexpr int kChunk = 1024;
  ModelOptions options = {.split_kv_size = 64,
                          .kv_bytes = 8 << 20,
                          .sequences_max = 1,
                          .chunk_tokens = kChunk,
                          .logits_bytes_max = 2 << 20};
  const LoadedModel model = LoadTiny({.vocabulary = 20000, .positions = kTokens}, options);
  const std::vector<int32_t> tokens = testing::RandomIds(1, kTokens + 1, 20000);
  const std::vector<int32_t> blocks = Blocks(0, 1, kTokens / 32);
  ASSERT_GE(model.executor->kv_block_count(), kTokens / 32);
  std::vector<float> raw;
  const int64_t before = PeakMemoryBytes();
  ASSERT_GT(before, 0);
  for (int begin = 0; begin < kTokens; begin += kChunk) {
    StepSequence sequence;
    sequence.tokens = std::span<const int32_t>(tokens).subspan(begin, kChunk);
    sequence.position = begin;
    sequence.blocks = blocks;
    sequence.score_targets = std::span<const int32_t>(tokens).subspan(begin + 1, kChunk);
    std::vector<StepSequenceResult> results;
    ASSERT_TRUE(model.executor->Execute({&sequence, 1}, &results).ok());
    raw.insert(raw.end(), results[0].scored.raw.begin(), results[0].scored.raw.end());
  }
  EXPECT_EQ(raw.size(), size_t{kTokens});
  EXPECT_LT(PeakMemoryBytes() - before, int64_t{8} << 20);
}

}  // namespace
}  // namespace lockstep::worker
