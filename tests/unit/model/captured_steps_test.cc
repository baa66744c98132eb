#include <functional>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/model/transformer_executor.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/unit/model/step_driver.h"

// Decode steps that run as captured, on a backend that says it can: it keeps what it is told to
// enqueue, and does that again.
namespace lockstep::worker {
namespace {

struct KeptOps final : kernels::CapturedOps {
  std::function<void()> enqueue;
};

struct Counts {
  int steps = 0;
  int captures = 0;
  int replays = 0;
};

class CapturingKernelSet final : public faults::ForwardingKernelSet {
 public:
  CapturingKernelSet(std::unique_ptr<kernels::KernelSet> inner, Counts* counts)
      : ForwardingKernelSet(std::move(inner)), counts_(counts) {}

  bool asynchronous() const override { return true; }
  void BeginStep() override { ++counts_->steps; }
  std::unique_ptr<kernels::CapturedOps> Capture(const std::function<void()>& enqueue) override {
    ++counts_->captures;
    auto ops = std::make_unique<KeptOps>();
    ops->enqueue = enqueue;
    return ops;
  }
  void Replay(const kernels::CapturedOps& ops) override {
    ++counts_->replays;
    static_cast<const KeptOps&>(ops).enqueue();
  }

 private:
  Counts* const counts_;
};

testing::Trace DrawnOn(Counts* counts, bool penalised_and_ahead = false) {
  auto kernels = kernels::CreateKernelSet({.backend = "cpu", .threads = 1});
  LOCKSTEP_CHECK(kernels.ok()) << kernels.status();
  if (counts != nullptr)
    kernels = std::make_unique<CapturingKernelSet>(*std::move(kernels), counts);
  auto model = LoadModel({.model = "random:qwen3-tiny",
                          .split_kv_size = 64,
                          .kv_bytes = 8 << 20,
                          .sequences_max = 8,
                          .chunk_tokens = 64},
                         *std::move(kernels));
  LOCKSTEP_CHECK(model.ok()) << model.status();
  testing::DrivenSequence sequence;
  sequence.prompt = testing::RandomIds(3, 10, model->facts.vocabulary);
  sequence.new_tokens = 1100;
  sequence.sampling = {.sub_seed = 7, .temperature = 0.9f};
  if (penalised_and_ahead) sequence = testing::Penalised(sequence);
  return testing::Drive(
      model->executor.get(), sequence,
      {.blocks = testing::Blocks(0, 1, 35), .ahead = penalised_and_ahead && counts != nullptr});
}

// The audit of a device looks at the call that a capture picks, so that no capture is kept for
// good.
TEST(CapturedStepsTest, AreCapturedAnewAfterAThousandRunsWithTheSameBits) {
  Counts counts;
  const testing::Trace trace = DrawnOn(&counts);
  EXPECT_EQ(testing::DifferenceOf(trace, DrawnOn(nullptr)), "");
  // The first step prefills, the second enqueues its ops, and every later one replays.
  EXPECT_EQ(counts.steps, 1100);
  EXPECT_EQ(counts.replays, 1098);
  EXPECT_EQ(counts.captures, 2);
}

// Lists of counts grow, and captures go with the arrays that held them.
TEST(CapturedStepsTest, CountWhatIsStillBeingDrawn) {
  Counts counts;
  EXPECT_EQ(testing::DifferenceOf(DrawnOn(&counts, true), DrawnOn(nullptr, true)), "");
  EXPECT_GT(counts.replays, 1000);
}

}  // namespace
}  // namespace lockstep::worker
