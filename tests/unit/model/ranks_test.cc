#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/in_process_group.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/model/step_driver.h"

// How many ranks share a model reaches no bit: ids, logprobs of prompt and answer, top-k, entropy.
namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::DrivenSequence;
using ::testing::HasSubstr;
using testing::Schedule;
using testing::TinyModel;
using testing::Trace;

constexpr int kPromptTokens = 150;
constexpr int kNewTokens = 24;
constexpr int kSequenceBlocks = 6;  // Of 32 tokens.

using Wrap = std::function<std::unique_ptr<kernels::KernelSet>(
    int rank, std::unique_ptr<kernels::KernelSet> inner)>;

ModelOptions Options(const std::string& directory, int segments) {
  return {.model = directory,
          .reduction_segments = segments,
          .split_kv_size = 64,
          .kv_bytes = 24 << 20,
          .sequences_max = 40,
          .chunk_tokens = 320};
}

absl::StatusOr<LoadedModel> LoadOn(int ranks, const ModelOptions& options, const Wrap& wrap = {},
                                   absl::Duration patience = absl::Seconds(60)) {
  const std::shared_ptr<kernels::CollectiveGroup> group =
      kernels::CreateInProcessGroup(ranks, patience).value();
  return LoadModelOnRanks(
      options, group, [&](int rank) -> absl::StatusOr<std::unique_ptr<kernels::KernelSet>> {
        auto kernels = kernels::CreateKernelSet(
            {.backend = "cpu", .threads = 1, .collective = group->End(rank)});
        return wrap && kernels.ok() ? wrap(rank, *std::move(kernels)) : std::move(kernels);
      });
}

Schedule Alone() { return {.blocks = Blocks(0, 1, kSequenceBlocks)}; }

Schedule Crowded() {
  Schedule schedule = Alone();
  schedule.cuts = {64};
  schedule.neighbours = 7;
  schedule.neighbour_blocks = Blocks(kSequenceBlocks, 1, 14);
  return schedule;
}

// For up to eight ranks: 8 q heads, and ffn and q width in 8 segments of 64.
TinyModel Wide() {
  return {.seed = 3, .vocabulary = 600, .q_heads = 8, .head_dim = 64, .ffn = 512};
}

struct Shared {
  std::string name;
  TinyModel tiny;
  std::string directory;  // Instead of `tiny`.
  int segments = 1;
  std::vector<int> ranks;
};

void PrintTo(const Shared& model, std::ostream* out) { *out << model.name; }

class RanksTest : public ::testing::TestWithParam<Shared> {};

TEST_P(RanksTest, TheirNumberDoesNotShow) {
  testing::TemporaryDirectory temporary;
  std::string directory = GetParam().directory;
  if (directory.empty()) {
    directory = temporary.File("model");
    testing::WriteCheckpoint(directory, GetParam().tiny);
  }
  const ModelOptions options = Options(directory, GetParam().segments);
  const LoadedModel one =
      LoadModel(options, *kernels::CreateKernelSet({.backend = "cpu", .threads = 1})).value();
  const DrivenSequence sequence = testing::Sampled(kPromptTokens, kNewTokens, one.facts.vocabulary);
  const Trace expected = testing::Drive(one.executor.get(), sequence, Alone());
  ASSERT_EQ(expected.ids.size(), size_t{kNewTokens});
  const LogprobBlock scored = testing::Score(one.executor.get(), sequence, expected.ids, Alone());
  for (const int ranks : GetParam().ranks) {
    const LoadedModel shared = LoadOn(ranks, options).value();
    EXPECT_EQ(shared.weights_digest, one.weights_digest);
    EXPECT_EQ(shared.fingerprint.model_digest, one.fingerprint.model_digest);
    for (const Schedule& schedule : {Alone(), Crowded()}) {
      EXPECT_EQ(DifferenceOf(testing::Drive(shared.executor.get(), sequence, schedule), expected),
                "")
          << ranks << " ranks";
    }
    EXPECT_EQ(DifferenceOf(testing::Score(shared.executor.get(), sequence, expected.ids, Alone()),
                           scored),
              "")
        << ranks << " ranks";
  }
}

// More segments than ranks, as many, kv heads that divide by the ranks and that several hold, tied
// and biased layers, and a vocabulary that is no multiple of anything.
INSTANTIATE_TEST_SUITE_P(
    Models, RanksTest,
    ::testing::Values(
        Shared{.name = "TwoSegments", .tiny = {.seed = 3}, .segments = 2, .ranks = {2}},
        Shared{.name = "EightSegments", .tiny = Wide(), .segments = 8, .ranks = {1, 2, 4, 8}},
        Shared{.name = "F32TiedOddVocabulary",
               .tiny = {.seed = 4,
                        .stored = testing::StoredType::kF32,
                        .vocabulary = 331,
                        .tied = true},
               .segments = 2,
               .ranks = {2}},
        Shared{
            .name = "Qwen2Biases",
            .tiny = {.seed = 5, .hidden = 128, .head_dim = 32, .family = testing::Family::kQwen2},
            .segments = 2,
            .ranks = {2}},
        Shared{.name = "DemoModel",
               .directory = "deploy/demo-model",
               .segments = 8,
               .ranks = {2, 4, 8}},
        Shared{.name = "DemoModelTwoSegments",
               .directory = "deploy/demo-model",
               .segments = 2,
               .ranks = {2}}),
    [](const ::testing::TestParamInfo<Shared>& info) { return info.param.name; });

constexpr int32_t kWrongId = 17;
constexpr int32_t kChosenIds[] = {kWrongId};

class RankFaultsTest : public ::testing::Test {
 protected:
  RankFaultsTest() {
    testing::WriteCheckpoint(temporary_.File("model"), {.seed = 3});
    options_ = Options(temporary_.File("model"), 2);
  }
  void Load(const Wrap& wrap, absl::Duration patience = absl::Seconds(60)) {
    model_ = LoadOn(2, options_, wrap, patience).value();
  }
  absl::Status Execute() {
    std::vector<StepSequenceResult> results;
    const std::vector<int32_t> tokens = testing::RandomIds(1, 20, 320);
    const std::vector<int32_t> blocks = {0};
    StepSequence sequence;
    sequence.tokens = tokens;
    sequence.blocks = blocks;
    sequence.sample = true;
    sequence.sampling.position = 20;
    sequence.chosen_ids = kChosenIds;
    return model_.executor->Execute({&sequence, 1}, &results);
  }

  testing::TemporaryDirectory temporary_;
  ModelOptions options_;
  LoadedModel model_;
};

// Moves one gathered logit by a thousandth.
class LogitOff final : public faults::ForwardingKernelSet {
 public:
  using ForwardingKernelSet::ForwardingKernelSet;
  void Linear(const kernels::LinearArgs& args) override {
    ForwardingKernelSet::Linear(args);
    if (!args.output_f32) return;
    static_cast<float*>(args.y)[kWrongId] *= 1.001f;
  }
};

TEST_F(RankFaultsTest, OneWrongLogitOnOneRankEndsTheWorker) {
  Load({});
  EXPECT_TRUE(Execute().ok());
  Load([](int rank,
          std::unique_ptr<kernels::KernelSet> inner) -> std::unique_ptr<kernels::KernelSet> {
    if (rank == 0) return inner;
    return std::make_unique<LogitOff>(std::move(inner));
  });
  const absl::Status status = Execute();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of 2"));
  EXPECT_EQ(model_.executor->health(), status);
}

// Stands still in an op until it is told to go on.
class Stalled final : public faults::ForwardingKernelSet {
 public:
  Stalled(std::unique_ptr<kernels::KernelSet> inner, absl::Notification* go)
      : ForwardingKernelSet(std::move(inner)), go_(go) {}
  void SwiGlu(const kernels::SwiGluArgs& args) override {
    go_->WaitForNotification();
    ForwardingKernelSet::SwiGlu(args);
  }

 private:
  absl::Notification* const go_;
};

TEST_F(RankFaultsTest, AStalledRankIsNamedWhileItsStepIsStuck) {
  absl::Notification go;
  Load(
      [&](int rank,
          std::unique_ptr<kernels::KernelSet> inner) -> std::unique_ptr<kernels::KernelSet> {
        if (rank == 0) return inner;
        return std::make_unique<Stalled>(std::move(inner), &go);
      },
      absl::Milliseconds(100));
  absl::Status status;
  std::thread step([&] { status = Execute(); });
  while (model_.executor->health().ok()) std::this_thread::yield();
  EXPECT_THAT(std::string(model_.executor->health().message()), HasSubstr("rank 1 of 2"));
  go.Notify();
  step.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RankFaultsTest, ARankThatCannotLoadLetsThoseGoThatMeetAsTheyLoad) {
  const std::shared_ptr<kernels::CollectiveGroup> group =
      kernels::CreateInProcessGroup(2, absl::Minutes(15)).value();
  const auto make = [&](int rank) -> absl::StatusOr<std::unique_ptr<kernels::KernelSet>> {
    if (rank == 1) return absl::ResourceExhaustedError("device 1 is full");
    const std::unique_ptr<kernels::Collective> end = group->End(rank);
    float x = 1;
    end->AllReduce(&x, 1, &x);
    return end->status();
  };
  const absl::Status status = LoadModelOnRanks(options_, group, make).status();
  EXPECT_EQ(status, absl::ResourceExhaustedError("device 1 is full"));
}

TEST_F(RankFaultsTest, RefusesWhatCannotBeShared) {
  const auto refusal = [&](int ranks, int segments) {
    options_.reduction_segments = segments;
    return std::string(LoadOn(ranks, options_).status().message());
  };
  EXPECT_THAT(refusal(4, 2), HasSubstr("reduction_segments is 2"));
  testing::WriteCheckpoint(temporary_.File("model"),
                           {.q_heads = 12, .kv_heads = 3, .head_dim = 64, .ffn = 256});
  EXPECT_THAT(refusal(2, 2), HasSubstr("3 kv heads"));
  testing::WriteCheckpoint(temporary_.File("model"), {.vocabulary = 100});
  EXPECT_THAT(refusal(2, 2), HasSubstr("a vocabulary of 100"));
}

}  // namespace
}  // namespace lockstep::worker
