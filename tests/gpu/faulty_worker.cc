// A worker with a planted fault, to join a real cluster on a GPU: what looks for such faults has to
// find it there too. Usage: gpu_faulty_worker FAULT CONFIG
//   split_by_batch   attention splits the KV, and linear layers their inputs, in another way when a
//                    step holds several sequences: each by itself is tested in tests/faults
//   lost_device      the device is lost for good after some hundred tokens
// One rank of several, after some steps:
//   lost_rank        its device is lost for good
//   stalled_rank     its device runs nothing for longer than anybody waits
//   stuck_rank       its thread stands still for ever
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/config/text_proto.h"
#include "common/log/logger.h"
#include "common/rpc/signal_waiter.h"
#include "kernels/api/kernel_set.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/worker/worker_server.h"
#include "tests/faults/altering_executor.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/faults/planted_faults.h"
#include "tests/gpu/device_faults.h"

namespace lockstep {
namespace {

// Enough for a router to have sequences here in mid-stream.
constexpr int kTokensBeforeTheTrap = 300;
constexpr int kStepsBeforeTheFault = 30;
// Long after the worker has to be gone.
constexpr uint64_t kStallNanoseconds = 60'000'000'000;

class LostDeviceExecutor final : public faults::AlteringExecutor {
 public:
  using AlteringExecutor::AlteringExecutor;

 private:
  void AlterStep(std::vector<worker::StepSequence>* sequences) override {
    for (const worker::StepSequence& sequence : *sequences) tokens_ += sequence.sample ? 1 : 0;
    if (tokens_ < kTokensBeforeTheTrap) return;
    LOCKSTEP_CHECK(testing::TrapDevice() == cudaSuccess) << "the device was lost before";
  }

  int tokens_ = 0;
};

// A rank to which something happens, once, as it begins a step. It is like the others until then:
// its steps are captured too.
class FaultyRank final : public faults::ForwardingKernelSet {
 public:
  // `rank` is `inner`.
  FaultyRank(kernels::KernelSet* rank, std::unique_ptr<kernels::KernelSet> inner,
             std::function<void()> befalls)
      : ForwardingKernelSet(std::move(inner)), rank_(rank), befalls_(std::move(befalls)) {}

  void BeginStep() override {
    if (++steps_ == kStepsBeforeTheFault) {
      logger_.Warning("planted_fault");
      befalls_();
    }
    rank_->BeginStep();
  }
  std::unique_ptr<kernels::CapturedOps> Capture(const std::function<void()>& enqueue) override {
    return rank_->Capture(enqueue);
  }
  void Replay(const kernels::CapturedOps& ops) override { rank_->Replay(ops); }
  void LinearAndNorm(const kernels::LinearArgs& linear, const kernels::RmsNormArgs& norm) override {
    rank_->LinearAndNorm(linear, norm);
  }

 private:
  kernels::KernelSet* const rank_;
  const std::function<void()> befalls_;
  base::RealClock clock_;
  log::StderrSink sink_;
  log::Logger logger_{{.service = "worker"}, &clock_, &sink_};
  int steps_ = 0;
};

worker::WorkerHooks SplitAllByBatch() {
  return {.wrap_kernels = [attention = faults::SplitByBatch(), linear = faults::SegmentsByBatch()](
                              std::unique_ptr<kernels::KernelSet> inner) {
    return attention.wrap_kernels(linear.wrap_kernels(std::move(inner)));
  }};
}

// Of the rank that is made first; on its thread, where its device is current.
worker::WorkerHooks OnOneRank(std::function<void()> befalls) {
  auto made = std::make_shared<std::atomic<int>>(0);
  return {.wrap_kernels = [made,
                           befalls = std::move(befalls)](std::unique_ptr<kernels::KernelSet> inner)
              -> std::unique_ptr<kernels::KernelSet> {
    if (made->fetch_add(1) > 0) return inner;
    kernels::KernelSet* const rank = inner.get();
    return std::make_unique<FaultyRank>(rank, std::move(inner), befalls);
  }};
}

absl::StatusOr<worker::WorkerHooks> HooksOf(const std::string& fault) {
  if (fault == "split_by_batch") return SplitAllByBatch();
  if (fault == "lost_device") {
    return worker::WorkerHooks{.wrap_executor = faults::WrapExecutorIn<LostDeviceExecutor>()};
  }
  if (fault == "lost_rank") {
    return OnOneRank([] { LOCKSTEP_CHECK(testing::TrapDevice() == cudaSuccess); });
  }
  if (fault == "stalled_rank") {
    return OnOneRank(
        [] { LOCKSTEP_CHECK(testing::StallDevice(kStallNanoseconds) == cudaSuccess); });
  }
  if (fault == "stuck_rank") {
    return OnOneRank([] { absl::Notification().WaitForNotification(); });
  }
  return absl::InvalidArgumentError(fault + " is no fault");
}

// As the verb `worker`, which does not wait for threads and devices that may never end either.
absl::Status Serve(const std::string& fault, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const worker::WorkerHooks hooks, HooksOf(fault));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto config,
                            config::LoadTextProto<config::v1::WorkerConfig>(path));
  LOCKSTEP_ASSIGN_OR_RETURN(auto options, worker::ReadWorkerOptions(config));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server,
                            worker::WorkerServer::Start(std::move(options), hooks));
  base::RealClock clock;
  log::StderrSink sink;
  const log::Logger logger({.service = "worker"}, &clock, &sink);
  while (!signals->Wait(absl::Milliseconds(200)).has_value()) {
    if (server->health().ok()) continue;
    logger.Error("unhealthy", {{"error", server->health()}});
    std::_Exit(1);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const absl::Status status = lockstep::Serve(argv[1], argv[2]);
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
