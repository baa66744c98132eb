// Comparisons like those of transformer_executor_test, on executors with a fault: each fault shows
// in the one that is about its kind, and without a fault nothing shows.
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/faults/planted_faults.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/model/step_driver.h"

namespace lockstep::worker {
namespace {

using testing::Blocks;
using testing::DifferenceOf;
using testing::Drive;
using testing::DrivenSequence;
using testing::Schedule;
using testing::Trace;

constexpr int kSplit = 64;
constexpr int kBlockTokens = 32;
constexpr int kVocabulary = 320;
constexpr int kNewTokens = 24;
constexpr int kSequenceBlocks = 6;

Schedule Alone() { return {.blocks = Blocks(0, 1, kSequenceBlocks)}; }

DrivenSequence Sampled() {
  DrivenSequence sequence;
  sequence.prompt = testing::RandomIds(11, 150, kVocabulary);
  sequence.new_tokens = kNewTokens;
  sequence.sampling = {.sub_seed = 0x9E3779B97F4A7C15, .temperature = 0.8f};
  return sequence;
}

// Each returns what differs first between two runs that must be equal.
std::string AloneAndAmongNeighbours(StepExecutor* executor) {
  Schedule schedule = Alone();
  schedule.neighbours = 7;
  schedule.neighbour_blocks = Blocks(kSequenceBlocks, 1, 2 * schedule.neighbours);
  return DifferenceOf(Drive(executor, Sampled(), schedule), Drive(executor, Sampled(), Alone()));
}

std::string WholeAndBehindAPrefix(StepExecutor* executor) {
  Schedule schedule = Alone();
  // A prefix of whole blocks that ends between two splits, as one from the cache does.
  schedule.cuts = {kSplit + kBlockTokens};
  return DifferenceOf(Drive(executor, Sampled(), schedule), Drive(executor, Sampled(), Alone()));
}

std::string OnceAndAgain(StepExecutor* executor) {
  const Trace once = Drive(executor, Sampled(), Alone());
  return DifferenceOf(Drive(executor, Sampled(), Alone()), once);
}

std::string WholeAndResumed(StepExecutor* executor) {
  const Trace whole = Drive(executor, Sampled(), Alone());
  for (int given = 1; given < kNewTokens; ++given) {
    DrivenSequence rest = Sampled();
    rest.prompt.insert(rest.prompt.end(), whole.ids.begin(), whole.ids.begin() + given);
    rest.new_tokens = kNewTokens - given;
    const Trace resumed = Drive(executor, rest, Alone());
    if (!std::equal(resumed.ids.begin(), resumed.ids.end(), whole.ids.begin() + given)) {
      return absl::StrCat("ids resumed after ", given);
    }
  }
  return "";
}

std::string DrawnAndScored(StepExecutor* executor) {
  const Trace drawn = Drive(executor, Sampled(), Alone());
  LogprobBlock scored = testing::Score(executor, Sampled(), drawn.ids, Alone());
  const std::vector<float> tail(scored.raw.end() - kNewTokens, scored.raw.end());
  return tail == drawn.drawn.raw ? "" : "raw";
}

struct Fault {
  const char* name;
  WorkerHooks hooks;
  std::string (*compare)(StepExecutor*);
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> Faults() {
  return {
      {"split_by_batch", faults::SplitByBatch(), AloneAndAmongNeighbours},
      {"segments_by_batch", faults::SegmentsByBatch(), AloneAndAmongNeighbours},
      {"sampling_branch_by_neighbour", faults::SamplingBranchByNeighbour(),
       AloneAndAmongNeighbours},
      {"stale_prefix_hit", faults::StalePrefixHit(kSplit), WholeAndBehindAPrefix},
      {"noise_keyed_by_step", faults::NoiseKeyedByStep(), OnceAndAgain},
      {"resume_off_by_one", faults::ResumeOffByOne(), WholeAndResumed},
      {"logprob_kernel_by_path", faults::LogprobKernelByPath(), DrawnAndScored},
  };
}

class StepFaultsTest : public ::testing::TestWithParam<Fault> {
 protected:
  // The model as a worker with `hooks` would run it.
  std::unique_ptr<StepExecutor> Load(const WorkerHooks& hooks) {
    testing::WriteCheckpoint(directory_.path(), {.vocabulary = kVocabulary});
    auto kernels = kernels::CreateKernelSet({.backend = "cpu", .threads = 1});
    EXPECT_TRUE(kernels.ok()) << kernels.status();
    if (hooks.wrap_kernels) kernels = hooks.wrap_kernels(*std::move(kernels));
    auto model = LoadModel({.model = directory_.path(),
                            .split_kv_size = kSplit,
                            .kv_bytes = 24 << 20,
                            .sequences_max = 40,
                            .chunk_tokens = 5 * kSplit},
                           *std::move(kernels));
    EXPECT_TRUE(model.ok()) << model.status();
    return hooks.wrap_executor ? hooks.wrap_executor(std::move(model->executor))
                               : std::move(model->executor);
  }

 private:
  testing::TemporaryDirectory directory_;
};

TEST_P(StepFaultsTest, ShowsInTheComparisonOfItsKindAndOnlyThen) {
  EXPECT_EQ(GetParam().compare(Load({}).get()), "");
  EXPECT_NE(GetParam().compare(Load(GetParam().hooks).get()), "");
}

INSTANTIATE_TEST_SUITE_P(Faults, StepFaultsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::worker
