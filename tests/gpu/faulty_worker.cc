// A worker with a planted fault, to join a real cluster on a GPU: what looks for such faults has to
// find it there too. Usage: gpu_faulty_worker FAULT CONFIG
//   split_by_batch   attention splits the KV, and linear layers their inputs, in another way when a
//                    step holds several sequences: each by itself is tested in tests/faults
//   lost_device      the device is lost for good after some hundred tokens
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/config/text_proto.h"
#include "common/rpc/signal_waiter.h"
#include "kernels/api/kernel_set.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/worker/worker_server.h"
#include "tests/faults/altering_executor.h"
#include "tests/faults/planted_faults.h"
#include "tests/gpu/device_trap.h"

namespace lockstep {
namespace {

// Enough for a router to have sequences here in mid-stream.
constexpr int kTokensBeforeTheTrap = 300;

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

worker::WorkerHooks SplitAllByBatch() {
  return {.wrap_kernels = [attention = faults::SplitByBatch(), linear = faults::SegmentsByBatch()](
                              std::unique_ptr<kernels::KernelSet> inner) {
    return attention.wrap_kernels(linear.wrap_kernels(std::move(inner)));
  }};
}

absl::StatusOr<worker::WorkerHooks> HooksOf(const std::string& fault) {
  if (fault == "split_by_batch") return SplitAllByBatch();
  if (fault == "lost_device") {
    return worker::WorkerHooks{.wrap_executor = faults::WrapExecutorIn<LostDeviceExecutor>()};
  }
  return absl::InvalidArgumentError(fault + " is no fault");
}

// As the verb `worker`.
absl::Status Serve(const std::string& fault, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const worker::WorkerHooks hooks, HooksOf(fault));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto config,
                            config::LoadTextProto<config::v1::WorkerConfig>(path));
  LOCKSTEP_ASSIGN_OR_RETURN(auto options, worker::ReadWorkerOptions(config));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server,
                            worker::WorkerServer::Start(std::move(options), hooks));
  while (!signals->Wait(absl::Milliseconds(200)).has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(server->health());
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
