// Shadows on a device: they change no bit of what is served, whatever they run beside it.
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/engine/shadowed_run.h"

namespace lockstep::worker {
namespace {

constexpr int kSplit = 256;

struct NamedModel {
  const char* name;
  int segments = 1;
  bool portable = false;  // Kernels of any GPU.
};
void PrintTo(const NamedModel& model, std::ostream* out) { *out << model.name; }

LoadedModel Load(const NamedModel& named, bool shadows) {
  auto kernels =
      kernels::CreateKernelSet({.backend = "cuda",
                                .certificates_path = ::testing::TempDir() + "lockstep_certificates",
                                .shadows = shadows,
                                .portable_kernels = named.portable});
  LOCKSTEP_CHECK(kernels.ok()) << kernels.status();
  auto model = LoadModel({.model = "random:qwen3-tiny",
                          .reduction_segments = named.segments,
                          .split_kv_size = kSplit,
                          .kv_bytes = int64_t{1} << 30,
                          .sequences_max = 8,
                          .chunk_tokens = kSplit,
                          .context_tokens_max = 512},
                         *std::move(kernels));
  LOCKSTEP_CHECK(model.ok()) << model.status();
  return *std::move(model);
}

ShadowedRun RunOn(const LoadedModel& model, int64_t shadow_every_steps) {
  return RunShadowed({.model = model.executor.get(),
                      .vocabulary = model.facts.vocabulary,
                      .split = kSplit,
                      .shadow_every_steps = shadow_every_steps});
}

class DeviceShadowTest : public ::testing::TestWithParam<NamedModel> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::WhyNoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(DeviceShadowTest, AShadowOfEveryStepChangesNoTokenAndNoLogprobBit) {
  const ShadowedRun plain = RunOn(Load(GetParam(), false), 1);
  EXPECT_EQ(plain.shadows, 0) << "nobody asked for them";
  const LoadedModel model = Load(GetParam(), true);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const ShadowedRun shadowed = RunOn(model, 1);
    EXPECT_EQ(shadowed.transcripts, plain.transcripts);
    EXPECT_EQ(shadowed.shadows, shadowed.steps);
    EXPECT_EQ(shadowed.audit_mismatches, 0);
  }
  EXPECT_GT(model.executor->audit().rows, 0u);
}

TEST_P(DeviceShadowTest, EveryShapeHasATimeInBothModes) {
  const LoadedModel model = Load(GetParam(), true);
  const base::RealClock clock;
  std::vector<std::vector<SequenceShape>> shapes = {
      {{.position = 0, .tokens = 256, .draws = true}},
      {{.position = 256, .tokens = 100}, {.position = 300, .tokens = 1, .draws = true}},
      {{.position = 0, .tokens = 1}}};
  for (const int batch : {1, 3, 8}) {
    shapes.emplace_back(static_cast<size_t>(batch),
                        SequenceShape{.position = 511, .tokens = 1, .draws = true});
  }
  for (const std::vector<SequenceShape>& shape : shapes) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto times = model.executor->TimeModes(shape, clock);
      ASSERT_TRUE(times.ok()) << times.status();
      EXPECT_GT(times->deterministic, absl::ZeroDuration());
      EXPECT_GT(times->normal, absl::ZeroDuration());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceShadowTest,
                         ::testing::Values(NamedModel{.name = "OneSegment"},
                                           NamedModel{.name = "TwoSegments", .segments = 2},
                                           NamedModel{.name = "Portable", .portable = true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::worker
