// Shapes that a kernel set cannot compute are refused by name before a step, not in one.
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "tests/gpu/gpu_test.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;

class RefusedShapesTest : public testing::GpuTest {
 protected:
  void SetUp() override {
    testing::GpuTest::SetUp();
    if (IsSkipped()) return;
    kernels_ = CreateKernelSet({.backend = "cuda"}).value();
  }

  absl::StatusOr<std::unique_ptr<LinearWeight>> Pack(int64_t outputs, int64_t inputs,
                                                     const LinearLayout& layout = {}) {
    values_.assign(static_cast<size_t>(outputs * inputs), 0);
    const HostTensor weight = {
        .name = "w", .data = values_.data(), .dtype = DType::kBf16, .shape = {outputs, inputs}};
    auto packed = kernels_->PackLinear({&weight, 1}, {}, layout);
    EXPECT_TRUE(kernels_->Synchronize().ok());
    return packed;
  }

  // Of a model whose lm_head has this shape.
  absl::Status Prepare(int64_t vocabulary, int64_t hidden) {
    const std::unique_ptr<LinearWeight> lm_head = Pack(vocabulary, hidden).value();
    return kernels_->Prepare({.rows_max = 8,
                              .logits_rows_max = 8,
                              .sequences_max = 8,
                              .context_tokens_max = 512,
                              .split_kv_size = 256,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .head_dim = 64,
                              .lm_head = lm_head.get()});
  }

  std::vector<uint16_t> values_;
  std::unique_ptr<KernelSet> kernels_;
};

TEST_F(RefusedShapesTest, MoreSegmentsThanAreSummed) {
  EXPECT_TRUE(Pack(64, 1024, {.segments = 8}).ok());
  const absl::Status refused = Pack(64, 1024, {.segments = 16}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("reduction_segments = 16"));
  EXPECT_THAT(refused.message(), HasSubstr("at most 8"));
}

TEST_F(RefusedShapesTest, RowsThatNoNormHolds) {
  const absl::Status refused = Prepare(64, 16384 + 64);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("hidden_size = 16448"));
}

TEST_F(RefusedShapesTest, AVocabularyThatNoLogSoftmaxHolds) {
  const absl::Status refused = Prepare(400'000, 64);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("vocab_size = 400000"));
}

TEST_F(RefusedShapesTest, WhatFitsIsPrepared) {
  const absl::Status status = Prepare(1024, 256);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lockstep::kernels
