#include "services/worker/engine/overhead_meter.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr ModeTimes kTwiceAsLong = {.deterministic = absl::Milliseconds(2),
                                    .normal = absl::Milliseconds(1)};

// A meter over an executor whose times the test says.
class OverheadMeterTest : public ::testing::Test {
 protected:
  OverheadMeter& Meter(int64_t every_steps) {
    return meter_.emplace(every_steps, &executor_, &clock_, &metrics_);
  }
  // A step of so many sequences with so many tokens each, served for a second.
  void ServeStep(int sequences, int tokens) {
    const std::vector<int32_t> ids(static_cast<size_t>(tokens));
    const std::vector<StepSequence> step(static_cast<size_t>(sequences),
                                         {.tokens = ids, .position = 100, .sample = true});
    meter_->Serve(meter_->Begin(step), absl::Seconds(1));
    if (meter_->due()) {
      ASSERT_TRUE(meter_->Measure().ok());
    }
  }
  void SetTimes(double deterministic_ms, double normal_ms) {
    times_ = {.deterministic = absl::Milliseconds(deterministic_ms),
              .normal = absl::Milliseconds(normal_ms)};
  }
  const metrics::Gauge* Ratio(const std::string& phase, const std::string& batch) {
    return metrics_.ratio.Find({phase, batch});
  }

  base::SimClock clock_;
  metrics::Registry registry_;
  OverheadMetrics metrics_{&registry_};
  ModeTimes times_ = kTwiceAsLong;
  std::vector<std::vector<SequenceShape>> shapes_;
  HashExecutor executor_{{.block_count = 1, .mode_times = [this](auto step) {
                            shapes_.emplace_back(step.begin(), step.end());
                            return times_;
                          }}};
  std::optional<OverheadMeter> meter_;
};

TEST_F(OverheadMeterTest, WhatWasNeverMeasuredIsAbsentAndNotZero) {
  Meter(100);
  for (int i = 0; i < 99; ++i) ServeStep(4, 1);
  EXPECT_THAT(registry_.ToText(), Not(HasSubstr("determinism_overhead_ratio{")));
  EXPECT_THAT(registry_.ToText(), Not(HasSubstr("weighted_ratio ")));
  ServeStep(4, 1);
  EXPECT_THAT(
      registry_.ToText(),
      HasSubstr("lockstep_worker_determinism_overhead_ratio{batch=\"4\",phase=\"decode\"} 2"));
  EXPECT_THAT(registry_.ToText(),
              HasSubstr("lockstep_worker_determinism_overhead_weighted_ratio 2"));
}

TEST_F(OverheadMeterTest, OneStepInSoManyOfEachBucketHasAShadowOfItsShape) {
  Meter(3);
  for (int i = 0; i < 7; ++i) ServeStep(5, 1);
  for (int i = 0; i < 3; ++i) ServeStep(2, 40);
  ServeStep(300, 1);
  ASSERT_EQ(shapes_.size(), 3u);
  EXPECT_EQ(metrics_.shadows.value(), 3);
  EXPECT_EQ(shapes_[0].size(), 5u);
  EXPECT_EQ(shapes_[0][0].tokens, 1);
  EXPECT_EQ(shapes_[0][0].position, 100);
  EXPECT_EQ(shapes_[2].size(), 2u);
  EXPECT_EQ(shapes_[2][0].tokens, 40);
  ASSERT_NE(Ratio("decode", "8"), nullptr);
  ASSERT_NE(Ratio("prefill", "128"), nullptr);
  EXPECT_EQ(Ratio("decode", "512"), nullptr);
}

TEST_F(OverheadMeterTest, OneDisturbedShadowDoesNotShow) {
  Meter(1);
  SetTimes(102, 100);
  for (int i = 0; i < 4; ++i) ServeStep(1, 1);
  SetTimes(900, 100);
  ServeStep(1, 1);
  EXPECT_DOUBLE_EQ(Ratio("decode", "1")->value(), 1.02);
  SetTimes(98, 100);
  for (int i = 0; i < 9; ++i) ServeStep(1, 1);
  EXPECT_DOUBLE_EQ(Ratio("decode", "1")->value(), 0.98) << "old shadows are forgotten";
}

TEST_F(OverheadMeterTest, TheWholeIsWeightedByWhatWasServed) {
  Meter(2);
  SetTimes(150, 100);
  for (int i = 0; i < 6; ++i) ServeStep(1, 1);
  SetTimes(100, 100);
  for (int i = 0; i < 2; ++i) ServeStep(1, 64);
  ServeStep(2, 1);  // Never measured, and so left out.
  SetTimes(100, 100);
  for (int i = 0; i < 2; ++i) ServeStep(1, 64);
  // 6 s that normal mode does in 4, and 4 s that it does in 4.
  EXPECT_DOUBLE_EQ(metrics_.weighted_ratio.Find({})->value(), 10.0 / 8);
  EXPECT_EQ(metrics_.served.Find({"decode", "2"})->value(), 1);
}

TEST_F(OverheadMeterTest, TheTimeOfTheMeasurementIsTold) {
  Meter(1);
  clock_.Advance(absl::Seconds(1234));
  ServeStep(1, 1);
  EXPECT_EQ(metrics_.measured.Find({"decode", "1"})->value(), 1234);
}

std::vector<std::string> RunAll(EngineHarness* harness) {
  for (uint64_t i = 1; i <= 6; ++i) {
    const auto prompt = RandomIds(i % 2, 40 + 9 * static_cast<int64_t>(i));
    EXPECT_TRUE(harness->core().Start(MakeStart(i, prompt, 20)).ok());
    harness->RunStep();
  }
  EXPECT_TRUE(harness->RunAll());
  EXPECT_THAT(harness->violations(), IsEmpty());
  std::vector<std::string> texts;
  for (const auto& [ticket, transcript] : harness->transcripts()) {
    texts.push_back(Describe(transcript));
  }
  return texts;
}

TEST(ShadowedEngineTest, AShadowOfEveryStepShowsInNoResult) {
  EngineHarness plain({.executor = {.asynchronous = true}});
  const std::vector<std::string> expected = RunAll(&plain);
  EXPECT_EQ(plain.metrics().overhead.shadows.value(), 0);
  for (const bool asynchronous : {false, true}) {
    EngineHarness shadowed({.shadow_every_steps = 1,
                            .executor = {.asynchronous = asynchronous,
                                         .mode_times = [](auto) { return kTwiceAsLong; }}});
    EXPECT_EQ(RunAll(&shadowed), expected);
    EXPECT_EQ(shadowed.metrics().overhead.shadows.value(), shadowed.metrics().steps.value());
  }
}

TEST(ShadowedEngineTest, ADeviceThatIsLostInAShadowEndsTheEngine) {
  EngineHarness harness({.shadow_every_steps = 3, .executor = {.mode_times = [](auto) {
                                                    return absl::UnavailableError("gone");
                                                  }}});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 30)).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(harness.core().health().code(), absl::StatusCode::kUnavailable);
}

TEST(ShadowedEngineTest, AnEngineThatIsHeldLeavesTheDeviceAlone) {
  EngineHarness harness(
      {.shadow_every_steps = 1, .executor = {.mode_times = [](auto) { return kTwiceAsLong; }}});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 30)).ok());
  ASSERT_TRUE(harness.RunStep());
  harness.core().SetHold(true);
  EXPECT_FALSE(harness.RunStep());
  EXPECT_EQ(harness.metrics().overhead.shadows.value(), 0);
  harness.core().SetHold(false);
  EXPECT_TRUE(harness.RunStep());
  EXPECT_EQ(harness.metrics().overhead.shadows.value(), 1);
}

TEST(ShadowedEngineTest, WithoutAnotherModeNothingIsMeasured) {
  EngineHarness harness({.shadow_every_steps = 1});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 30)).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(harness.metrics().overhead.shadows.value(), 0);
}

}  // namespace
}  // namespace lockstep::worker
