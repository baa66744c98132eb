// Shadows on a backend whose normal mode computes rubbish: whatever it reaches shows.
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/model/transformer_executor.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/unit/engine/shadowed_run.h"

namespace lockstep::worker {
namespace {

constexpr int kSplit = 64;

// What was asked of the backend, by whose ops they were.
struct Seen {
  std::set<const kernels::KvCache*> served, shadowed;
  int linear_calls[3] = {};
  int draws_in_shadows = 0;
};

class RubbishKernelSet final : public faults::ForwardingKernelSet {
 public:
  RubbishKernelSet(std::unique_ptr<kernels::KernelSet> inner, Seen* seen)
      : ForwardingKernelSet(std::move(inner)), seen_(seen) {}

  bool shadows() const override { return true; }
  void SetMode(kernels::OpsMode mode) override { mode_ = mode; }
  void Linear(const kernels::LinearArgs& args) override {
    ++seen_->linear_calls[static_cast<int>(mode_)];
    ForwardingKernelSet::Linear(args);
    if (mode_ != kernels::OpsMode::kNormalShadow) return;
    float* const y = static_cast<float*>(args.y);
    for (int row = 0; row < args.rows; ++row) {
      y[static_cast<size_t>(row) * args.y_stride] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  void QkvPrepare(const kernels::QkvPrepareArgs& args) override {
    (serves() ? seen_->served : seen_->shadowed).insert(args.kv);
    ForwardingKernelSet::QkvPrepare(args);
  }
  void Sample(const kernels::SampleArgs& args) override {
    seen_->draws_in_shadows += serves() ? 0 : 1;
    ForwardingKernelSet::Sample(args);
  }

 private:
  bool serves() const { return mode_ == kernels::OpsMode::kServing; }

  Seen* const seen_;
  kernels::OpsMode mode_ = kernels::OpsMode::kServing;
};

LoadedModel Load(Seen* seen) {
  auto kernels = kernels::CreateKernelSet({.backend = "cpu", .threads = 1});
  LOCKSTEP_CHECK(kernels.ok()) << kernels.status();
  auto model = LoadModel({.model = "random:qwen3-tiny",
                          .reduction_segments = 2,
                          .split_kv_size = kSplit,
                          .kv_bytes = 16 << 20,
                          .sequences_max = 8,
                          .chunk_tokens = kSplit,
                          .context_tokens_max = 512},
                         std::make_unique<RubbishKernelSet>(*std::move(kernels), seen));
  LOCKSTEP_CHECK(model.ok()) << model.status();
  return *std::move(model);
}

ShadowedRun RunWith(int64_t shadow_every_steps, Seen* seen) {
  const LoadedModel model = Load(seen);
  return RunShadowed({.model = model.executor.get(),
                      .vocabulary = model.facts.vocabulary,
                      .split = kSplit,
                      .shadow_every_steps = shadow_every_steps});
}

TEST(ShadowTest, AShadowOfEveryStepChangesNoTokenAndNoLogprobBit) {
  Seen plain_seen;
  const ShadowedRun plain = RunWith(0, &plain_seen);
  EXPECT_EQ(plain.shadows, 0);
  EXPECT_TRUE(plain_seen.shadowed.empty());
  Seen seen;
  const ShadowedRun shadowed = RunWith(1, &seen);
  EXPECT_EQ(shadowed.transcripts, plain.transcripts);
  EXPECT_EQ(shadowed.shadows, shadowed.steps);
  EXPECT_EQ(shadowed.steps, plain.steps);
  EXPECT_EQ(shadowed.prefix_hit_tokens, plain.prefix_hit_tokens);
  EXPECT_GT(plain.prefix_hit_tokens, 0);
}

TEST(ShadowTest, ShadowsHaveAPoolOfTheirOwnAndDrawNothing) {
  Seen seen;
  RunWith(2, &seen);
  ASSERT_EQ(seen.served.size(), 1u);
  ASSERT_EQ(seen.shadowed.size(), 1u);
  EXPECT_NE(*seen.served.begin(), *seen.shadowed.begin());
  EXPECT_EQ(seen.draws_in_shadows, 0);
}

TEST(ShadowTest, BothModesRunTheSameLayers) {
  Seen seen;
  RunWith(2, &seen);
  using enum kernels::OpsMode;
  EXPECT_GT(seen.linear_calls[static_cast<int>(kShadow)], 100);
  EXPECT_EQ(seen.linear_calls[static_cast<int>(kShadow)],
            seen.linear_calls[static_cast<int>(kNormalShadow)]);
}

TEST(ShadowTest, TheCpuBackendHasNone) {
  const auto kernels = kernels::CreateKernelSet({.backend = "cpu", .threads = 1, .shadows = true});
  EXPECT_EQ(kernels.status().code(), absl::StatusCode::kInvalidArgument);
  auto plain = kernels::CreateKernelSet({.backend = "cpu", .threads = 1});
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE((*plain)->shadows());
}

}  // namespace
}  // namespace lockstep::worker
