// The audit of linear layers on the device: what it finds, and that it finds nothing else.
#include "kernels/cuda/linear/linear_audit.h"

#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/linear/linear_sm90.h"
#include "kernels/cuda/linear/timed_graph.h"
#include "kernels/cuda/runtime/stream.h"
#include "tests/gpu/bit_flip.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/linear_rig.h"

namespace lockstep {
namespace {

using kernels::DType;
using kernels::cuda::CertificateTable;
using kernels::cuda::LinearAudit;
using kernels::cuda::LinearCall;
using kernels::cuda::LinearPlan;
using kernels::cuda::LinearShape;
using testing::DenseShape;
using testing::LinearRig;
using testing::Must;

// A layer in a captured graph that is audited in every launch, with a fault of one bit in some of
// its rows between the layer and the copy.
class AuditedGraph {
 public:
  AuditedGraph(const LinearPlan& plan, LinearRig* rig, bool accumulate, std::vector<size_t> faults)
      : stream_(kernels::cuda::CreateStream().value()) {
    auto audit = LinearAudit::Create({&plan.shape(), 1});
    LOCKSTEP_CHECK(audit.ok()) << audit.status().message();
    audit_ = *std::move(audit);
    const LinearShape& shape = plan.shape();
    auto graph = kernels::cuda::TimedGraph::Capture(
        1,
        [&](int, cudaStream_t on) {
          LinearCall call = rig->Call(kRows, 0, on);
          call.accumulate = accumulate;
          call_ = {.shape = shape,
                   .accumulate = accumulate,
                   .weight = call.weight,
                   .bias = call.bias,
                   .rows = kRows};
          EXPECT_TRUE(audit_->EnqueueBefore(shape, call, on).ok());
          EXPECT_TRUE(plan.Run(call, on).ok());
          const size_t row_bits = static_cast<size_t>(shape.y_stride) * 8 * SizeOf(shape.output);
          for (const size_t row : faults) Must(testing::FlipBit(call.y, row * row_bits + 700, on));
          return audit_->EnqueueAfter(shape, call, on);
        },
        stream_.get());
    LOCKSTEP_CHECK(graph.ok()) << graph.status().message();
    graph_ = std::make_unique<kernels::cuda::TimedGraph>(*std::move(graph));
  }

  // Goes on behind a difference, so that all of them are counted.
  absl::Status Step() {
    absl::Status status = audit_->Advance(stream_.get());
    status.Update(graph_->Replay().status());
    audit_->CountCopy(call_);
    return status;
  }
  absl::Status Finish() { return audit_->Finish(stream_.get()); }
  const kernels::AuditCounts& counts() const { return audit_->counts(); }

  static constexpr int kRows = 40;

 private:
  const kernels::cuda::Stream stream_;
  std::unique_ptr<LinearAudit> audit_;
  kernels::cuda::AuditedCall call_;
  std::unique_ptr<kernels::cuda::TimedGraph> graph_;
};

struct AuditCase {
  LinearShape shape;
  bool accumulate = false;
};
const std::vector<AuditCase>& AuditCases() {
  static const std::vector<AuditCase> cases = {
      {DenseShape(1024, 1024), false},
      {DenseShape(1024, 1024), true},
      {DenseShape(1024, 1024, 2), true},
      {DenseShape(1032, 1024, 1, DType::kBf16, /*bias=*/true), false},
      {DenseShape(2056, 1024, 1, DType::kF32), false}};
  return cases;
}

class AuditTest : public testing::GpuTest {
 protected:
  // Runs `body` on a plan of each case.
  void ForEachCase(const std::function<void(const LinearPlan&, LinearRig*, bool)>& body) {
    for (const AuditCase& one : AuditCases()) {
      SCOPED_TRACE(absl::StrCat(one.shape.outputs, " outputs, ", one.shape.segments,
                                " segments, accumulate ", one.accumulate));
      const CertificateTable table = testing::Certified({one.shape}, {16, 64});
      const auto plan = LinearPlan::Create(testing::Handle(), table, one.shape);
      ASSERT_TRUE(plan.ok());
      LinearRig rig(one.shape, 64);
      rig.ProvideWorkspace(plan->WorkspaceBytes(64, one.accumulate));
      rig.ComputeExpected(one.accumulate);
      body(*plan, &rig, one.accumulate);
    }
  }
};

// So small that tools that watch every access come to an end.
TEST_F(AuditTest, ComputesRowsOfASmallLayerAgain) {
  if (const auto reason = testing::WhyNoDevice(kernels::cuda::KernelPath::kSm90); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  constexpr int kRows = 5;
  const LinearShape shape = DenseShape(128, 256, 2, DType::kBf16, true);
  LinearRig rig(shape, kRows);
  rig.ComputeExpected(true);
  const LinearCall call = rig.Call(kRows, 0, nullptr);
  const auto audit = LinearAudit::Create({&shape, 1});
  ASSERT_TRUE(audit.ok()) << audit.status().message();
  ASSERT_TRUE((*audit)->EnqueueBefore(shape, call, nullptr).ok());
  Must(kernels::cuda::LinearOnSm90({.shape = shape,
                                    .tiling = 0,
                                    .rows = kRows,
                                    .weight = call.weight,
                                    .bias = call.bias,
                                    .x = call.x,
                                    .y = call.y,
                                    .accumulate = true},
                                   nullptr));
  ASSERT_TRUE((*audit)->EnqueueAfter(shape, call, nullptr).ok());
  (*audit)->CountCopy({.shape = shape,
                       .accumulate = true,
                       .weight = call.weight,
                       .bias = call.bias,
                       .rows = kRows});
  ASSERT_EQ((*audit)->Finish(nullptr), absl::OkStatus());
  EXPECT_EQ((*audit)->counts().rows, 4u);
  EXPECT_EQ((*audit)->counts().mismatches, 0u);
}

// Rows of every kind, NaN among them, in more launches than the ring holds.
TEST_F(AuditTest, FindsNothingWhereNothingIsWrong) {
  ForEachCase([](const LinearPlan& plan, LinearRig* rig, bool accumulate) {
    AuditedGraph graph(plan, rig, accumulate, {});
    for (int step = 0; step < 50; ++step) ASSERT_EQ(graph.Step(), absl::OkStatus());
    ASSERT_EQ(graph.Finish(), absl::OkStatus());
    EXPECT_EQ(graph.counts().rows, 50u * LinearAudit::kRowsPerCopy);
    EXPECT_EQ(graph.counts().mismatches, 0u);
    // What was looked at is not looked at again, and the ring goes on where it was.
    for (int step = 0; step < 3; ++step) ASSERT_EQ(graph.Step(), absl::OkStatus());
    ASSERT_EQ(graph.Finish(), absl::OkStatus());
    EXPECT_EQ(graph.counts().rows, 53u * LinearAudit::kRowsPerCopy);
  });
}

// The reference takes longer than the layer's own kernel many times over.
TEST_F(AuditTest, AComparisonThatStillRunsIsNoFailure) {
  const LinearShape shape = DenseShape(2048, 12288);
  const auto plan = LinearPlan::Create(testing::Handle(), testing::Certified({shape}, {64}), shape);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  LinearRig rig(shape, 64);
  rig.ProvideWorkspace(plan->WorkspaceBytes(64, false));
  AuditedGraph graph(*plan, &rig, false, {});
  for (int step = 0; step < 50; ++step) ASSERT_EQ(graph.Step(), absl::OkStatus());
  ASSERT_EQ(graph.Finish(), absl::OkStatus());
  EXPECT_EQ(graph.counts().rows, 50u * LinearAudit::kRowsPerCopy);
}

TEST_F(AuditTest, SeesOneBitOfEveryRowAtOnceAndNamesTheLayer) {
  ForEachCase([](const LinearPlan& plan, LinearRig* rig, bool accumulate) {
    std::vector<size_t> all(AuditedGraph::kRows);
    std::iota(all.begin(), all.end(), size_t{0});
    AuditedGraph graph(plan, rig, accumulate, all);
    ASSERT_EQ(graph.Step(), absl::OkStatus());
    const absl::Status status = graph.Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(status.message().find(absl::StrCat(plan.shape().outputs, " outputs")),
              absl::string_view::npos)
        << status.message();
    EXPECT_EQ(graph.counts().mismatches, 4u);
  });
}

// One row in ten has a wrong bit: as many rows are found as a share of a tenth says, and the chance
// to see none of them in so many launches is (1 - 4/40 * 4)^… < 10^-8 whichever rows are picked.
TEST_F(AuditTest, FindsFaultyRowsByTheirShare) {
  ForEachCase([](const LinearPlan& plan, LinearRig* rig, bool accumulate) {
    AuditedGraph graph(plan, rig, accumulate, {3, 14, 21, 38});
    constexpr int kSteps = 200;
    absl::Status status;
    for (int step = 0; step < kSteps; ++step) status.Update(graph.Step());
    status.Update(graph.Finish());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(graph.counts().rows, 4u * kSteps);
    // Binomial with p = 0.1: 80, and five standard deviations are 42.
    EXPECT_NEAR(static_cast<double>(graph.counts().mismatches), 80, 42);
  });
}

}  // namespace
}  // namespace lockstep
