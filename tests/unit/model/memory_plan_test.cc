#include "services/worker/model/memory_plan.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/model/random_model.h"
#include "tests/faults/forwarding_kernel_set.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kModel[] = "random:qwen3-tiny";

// The CPU backend with as much memory as a device of `total` bytes has.
class SmallDevice final : public faults::ForwardingKernelSet {
 public:
  SmallDevice(std::unique_ptr<kernels::KernelSet> inner, size_t total)
      : ForwardingKernelSet(std::move(inner)), total_(total) {}

  absl::StatusOr<kernels::DeviceMemory> Memory() override {
    return kernels::DeviceMemory{.total = total_, .free = total_ - std::min(total_, used_)};
  }
  absl::StatusOr<kernels::Buffer> Allocate(size_t bytes, std::string_view purpose) override {
    if (used_ + bytes > total_) {
      return absl::ResourceExhaustedError(absl::StrCat(std::string(purpose), " needs ", bytes));
    }
    used_ += bytes;
    return ForwardingKernelSet::Allocate(bytes, purpose);
  }

 private:
  const size_t total_;
  size_t used_ = 0;
};

absl::StatusOr<LoadedModel> LoadOn(int64_t total, const ModelOptions& options) {
  return LoadModel(options, std::make_unique<SmallDevice>(
                                *kernels::CreateKernelSet({.backend = "cpu", .threads = 1}),
                                static_cast<size_t>(total)));
}

void ExpectExhausted(const absl::Status& status, const std::string& setting) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(setting));
}

TEST(MemoryPlanTest, WeightBytesOfThe8BShapeAreThoseOfItsCheckpoint) {
  // 8,190,735,360 parameters, as published.
  EXPECT_EQ(WeightBytes(ParseRandomModel("random:qwen3-8b")->config), 2 * int64_t{8190735360});
}

TEST(MemoryPlanTest, RanksShareAllWeightsButNormsAndTheTableOfIds) {
  const ModelConfig config = ParseRandomModel("random:qwen3-8b")->config;
  const int64_t whole = WeightBytes(config);
  const int64_t table = 2 * int64_t{config.vocabulary} * config.hidden;
  for (const int ranks : {2, 4, 8}) {
    int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) all += WeightBytes(config, {rank, ranks});
    const int64_t norms =
        2 * int64_t{config.layers * (2 * config.hidden + 2 * config.head_dim) + config.hidden};
    EXPECT_EQ(all, whole + (ranks - 1) * (table + norms)) << ranks;
    // What one device could not hold, several can.
    const kernels::DeviceMemory memory = {.total = static_cast<size_t>(whole),
                                          .free = static_cast<size_t>(whole) * 3 / 4};
    EXPECT_TRUE(CheckWeightsFit(config, {ranks - 1, ranks}, memory).ok());
    EXPECT_FALSE(CheckWeightsFit(config, {}, memory).ok());
  }
}

TEST(MemoryPlanTest, WeightsThatDoNotFitSayHowMuchIsMissing) {
  const int64_t needed = WeightBytes(ParseRandomModel(kModel)->config);
  const absl::Status status = LoadOn(needed - 1000, {.model = kModel}).status();
  ExpectExhausted(status, "1000 are missing");
  EXPECT_THAT(std::string(status.message()), HasSubstr("set model to a smaller one"));
}

TEST(MemoryPlanTest, ActivationsThatDoNotFitNameTheSettingsOfAStep) {
  const int64_t weights = WeightBytes(ParseRandomModel(kModel)->config);
  ExpectExhausted(LoadOn(weights + kMiB, {.model = kModel}).status(), "lower chunk_tokens");
}

TEST(MemoryPlanTest, KvThatDoesNotFitSaysHowMuchIsMissing) {
  const kernels::DeviceMemory memory = {.total = 100 * kMiB, .free = 60 * kMiB};
  const absl::Status status = KvPoolBytes(70 * kMiB, kMiB, memory).status();
  ExpectExhausted(status, absl::StrCat(10 * kMiB, " are missing; lower kv_bytes"));
  EXPECT_EQ(KvPoolBytes(60 * kMiB, kMiB, memory).value(), 60 * kMiB);
}

TEST(MemoryPlanTest, UnsetKvTakesWhatIsFreeButForAReserve) {
  const kernels::DeviceMemory memory = {.total = 320 * kMiB, .free = 60 * kMiB};
  EXPECT_EQ(KvPoolBytes(0, kMiB, memory).value(), 50 * kMiB);
  ExpectExhausted(KvPoolBytes(0, 51 * kMiB, memory).status(),
                  absl::StrCat(kMiB, " are missing; lower chunk_tokens or sequences_max"));
}

TEST(MemoryPlanTest, TheHostsMemoryHasAFixedDefault) {
  EXPECT_EQ(KvPoolBytes(0, kMiB, {}).value(), 256 * kMiB);
  EXPECT_EQ(KvPoolBytes(7 * kMiB, kMiB, {}).value(), 7 * kMiB);
}

TEST(MemoryPlanTest, ADeviceOfAGibibyteGetsMostOfItAsKv) {
  const int64_t total = int64_t{1} << 30;
  const auto model = LoadOn(total, {.model = kModel, .logits_bytes_max = 4 << 20});
  ASSERT_TRUE(model.ok()) << model.status();
  // fp32 keys and values of 2 layers, 2 heads of 64.
  const int64_t token_bytes = int64_t{2} * 2 * 2 * 64 * 4;
  const int64_t pool =
      model->executor->kv_block_count() * model->executor->kv_block_tokens() * token_bytes;
  EXPECT_GT(pool, total * 8 / 10);
  EXPECT_LT(pool, total - total / 32);
}

}  // namespace
}  // namespace lockstep::worker
