// Whole clusters in one process, over workers on the device: what a worker does beyond its ops.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/cuda/backend/cuda_weights.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using ::testing::HasSubstr;
using testing::RolloutStub;

ClusterHarness::Options OnTheDevice() {
  return {.model = "random:qwen3-tiny",
          .backend = "cuda",
          .certificates_path = ::testing::TempDir() + "lockstep_certificates",
          .kv_bytes = int64_t{256} << 20};
}

v1::GenerateRequest Request(int i, int tokens) {
  v1::GenerateRequest request;
  for (int token = 0; token < 40 + i; ++token) {
    request.mutable_prompt_ids()->add_ids(1 + (token * 7 + i) % 1000);
  }
  request.set_seed(static_cast<uint64_t>(1000 + i));
  request.mutable_stop()->set_max_new_tokens(tokens);
  return request;
}

std::vector<v1::GenerateRequest> Requests(int count, int tokens) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(Request(i, tokens));
  return requests;
}

// A device on which one layer sometimes reads a weight with the wrong sign: one bit of memory, for
// as long as the layer runs. Which layer depends on nothing but a count.
class FlippingKernelSet final : public faults::ForwardingKernelSet {
 public:
  using ForwardingKernelSet::ForwardingKernelSet;

  void Linear(const kernels::LinearArgs& args) override {
    constexpr int kCallsApart = 3;
    if (++calls_ % kCallsApart != 0) return ForwardingKernelSet::Linear(args);
    const auto& weight = static_cast<const kernels::cuda::CudaLinearWeight&>(*args.weight);
    // The high byte of the first element, in memory that the device reads when it gets there.
    uint8_t* const byte = static_cast<uint8_t*>(const_cast<void*>(weight.weight())) + 1;
    Bytes& bytes = bytes_[byte];
    if (bytes.good.bytes() == 0) {
      bytes.good = AllocateHost(1, "a byte of a weight").value();
      bytes.bad = AllocateHost(1, "a byte of a weight").value();
      Download(byte, 1, bytes.good.as<void>());
      EXPECT_TRUE(Synchronize().ok());
      *bytes.bad.as<uint8_t>() = *bytes.good.as<uint8_t>() ^ 0x80;
    }
    Upload(bytes.bad.as<void>(), 1, byte);
    ForwardingKernelSet::Linear(args);
    Upload(bytes.good.as<void>(), 1, byte);
  }

 private:
  struct Bytes {
    kernels::Buffer good;
    kernels::Buffer bad;
  };
  int calls_ = 0;
  std::map<const uint8_t*, Bytes> bytes_;
};

class DeviceWorkerTest : public testing::GpuTest {
 protected:
  // One after the other, so that what the start of one writes is there for the next.
  void Start(ClusterHarness::Options options) {
    cluster_ = std::make_unique<ClusterHarness>(std::move(options));
    const absl::Status status = cluster_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  double Audited(int worker) {
    return cluster_->WorkerMetric(worker, "lockstep_worker_audit_rows_total");
  }
  double Mismatches(int worker) {
    return cluster_->WorkerMetric(worker, "lockstep_worker_audit_mismatches_total");
  }
  std::unique_ptr<ClusterHarness> cluster_;
};

TEST_F(DeviceWorkerTest, TheAuditLooksAndFindsNothing) {
  Start(OnTheDevice());
  const auto answers = GenerateAll(cluster_->stub(), Requests(32, 200));
  for (const auto& answer : answers) ASSERT_TRUE(answer.ok()) << answer.status();
  for (const int worker : {0, 1}) {
    EXPECT_GT(Audited(worker), 100) << worker;
    EXPECT_EQ(Mismatches(worker), 0) << worker;
  }
}

// A flipped bit reaches no status of CUDA's. The audit sees it, and then the worker does what it
// does when its device is lost: it is not ready, and what it ran goes on elsewhere.
TEST_F(DeviceWorkerTest, AFlippedBitEndsTheWorkerAndNoRequest) {
  ClusterHarness::Options options = OnTheDevice();
  options.hooked_worker = 0;
  options.worker_hooks.wrap_kernels = [](std::unique_ptr<kernels::KernelSet> inner) {
    return std::make_unique<FlippingKernelSet>(std::move(inner));
  };
  Start(std::move(options));
  const auto answers = GenerateAll(cluster_->stub(), Requests(32, 200));
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).token_ids().size(), 200 * sizeof(uint32_t));
  }
  const absl::Status health = cluster_->worker(0)->health();
  EXPECT_EQ(health.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(health.message()), HasSubstr("audit: "));
  EXPECT_GT(Mismatches(0), 0);
  EXPECT_TRUE(cluster_->worker(1)->health().ok());
  EXPECT_EQ(Mismatches(1), 0);
  EXPECT_TRUE(cluster_->WaitForWorkers(1));
}

TEST_F(DeviceWorkerTest, NormalModeServesWhoAsksForItAndSaysSo) {
  ClusterHarness::Options options = OnTheDevice();
  options.mode = "normal";
  options.workers = 1;
  Start(std::move(options));
  const auto info = CallNow(cluster_->stub(), &RolloutStub::GetServerInfo, {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->fingerprint().mode(), v1::MODE_NORMAL);
  const auto refused = CallNow(cluster_->stub(), &RolloutStub::Generate, Request(0, 20));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("MODE_NORMAL"));
  v1::GenerateRequest request = Request(0, 20);
  request.set_require_mode(v1::MODE_NORMAL);
  const auto served = CallNow(cluster_->stub(), &RolloutStub::Generate, request);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->mode(), v1::MODE_NORMAL);
  EXPECT_EQ(served->samples(0).token_ids().size(), 20 * sizeof(uint32_t));
  EXPECT_TRUE(served->samples(0).receipt().digest().empty()) << "nothing is promised";
  EXPECT_EQ(Audited(0), 0) << "there is no reference";
}

}  // namespace
}  // namespace lockstep
