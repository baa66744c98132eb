#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/channel_pool.h"
#include "lockstep/config/v1/config.pb.h"
#include "lockstep/v1/rollout.grpc.pb.h"
#include "services/gateway/gateway_server.h"
#include "services/router/router_server.h"
#include "services/scheduler/scheduler_server.h"
#include "services/worker/worker_server.h"

namespace lockstep::testing {

// A cluster of the real services in one process, on free ports of the loopback interface. Parts can
// be stopped and started again under the same name and port. Not thread-safe.
class ClusterHarness {
 public:
  struct Options {
    std::string model = "null:";
    std::string backend = "cpu";
    std::string certificates_path;
    int64_t reduction_segments = 0;
    int64_t tensor_parallel = 0;
    std::string mode;  // Of the workers and the scheduler; empty is the default.
    int workers = 2;
    int64_t kv_bytes = int64_t{16} << 20;
    int64_t sequences_max = 64;
    int64_t split_kv_size = 256;
    int64_t chunk_tokens = 512;
    double lease_seconds = 2;  // Long enough for a machine that is busy with other tests.
    int64_t reserve_horizon_tokens = 256;
    int64_t gateway_sequences_max = 65536;
    int64_t stream_slots_total = 4096;
    double orphan_grace_seconds = 30;
    double stream_idle_timeout_seconds = 60;
    int64_t message_bytes_max = 0;     // 0 is the default.
    double drain_finish_seconds = 0;   // 0 is the default.
    worker::WorkerHooks worker_hooks;  // Of every worker, or of hooked_worker alone.
    int hooked_worker = -1;
    // With authorities.pem and ROLE.pem, ROLE.key of all four roles and of "trainer", which stub()
    // is. Empty: plaintext.
    std::string tls_directory;
    std::string tokens_directory;     // Of the gateway.
    std::string tokenizer_directory;  // Of the gateway; empty: the model's.
  };
  explicit ClusterHarness(Options options);
  ~ClusterHarness();

  // Starts everything and waits until all workers are known to the gateway, and it is ready.
  absl::Status Start();

  absl::Status StartScheduler();
  void StopScheduler() { scheduler_.reset(); }
  absl::Status StartRouter();
  // As SIGTERM would; returns when the gateway has ended.
  void DrainGateway(absl::Duration deadline) { gateway_->Drain(absl::Now() + deadline); }
  void StopRouter() { router_.reset(); }
  absl::Status StartGateway();
  absl::Status StartWorker(int index) { return StartWorker(index, options_.model); }
  absl::Status StartWorker(int index, const std::string& model);
  // Without a farewell, as a kill would.
  void StopWorker(int index) { workers_[index].reset(); }
  worker::WorkerServer* worker(int index) { return workers_[index].get(); }

  v1::RolloutService::StubInterface* stub() { return stub_.get(); }
  std::string gateway_address() const;
  std::string worker_address(int index) const;
  std::string scheduler_address() const;
  std::string router_address() const;
  // The value of a metric of a worker, summed over its label values; 0 when it is not there.
  double WorkerMetric(int index, const std::string& name) const;
  double RouterMetric(const std::string& name) const;
  double SchedulerMetric(const std::string& name) const;
  double GatewayMetric(const std::string& name) const;
  // True as soon as the condition holds, false when it does not within `timeout`.
  static bool WaitUntil(absl::FunctionRef<bool()> condition,
                        absl::Duration timeout = absl::Seconds(20));
  bool WaitForWorkers(int count);

 private:
  config::v1::ServerConfig Server(const std::string& role, int port, int metrics_port) const;
  absl::StatusOr<rpc::ChannelOptions> TrainerChannel() const;
  double ReadMetric(const std::string& role, int port, const std::string& name) const;

  const Options options_;
  std::string directory_;
  int scheduler_port_ = 0;
  int router_port_ = 0;
  int gateway_port_ = 0;
  std::vector<int> worker_ports_;
  int scheduler_metrics_ = 0;
  int router_metrics_ = 0;
  int gateway_metrics_ = 0;
  std::vector<int> worker_metrics_;
  std::unique_ptr<scheduler::SchedulerServer> scheduler_;
  std::unique_ptr<router::RouterServer> router_;
  std::vector<std::unique_ptr<worker::WorkerServer>> workers_;
  std::unique_ptr<gateway::GatewayServer> gateway_;
  std::shared_ptr<grpc::Channel> gateway_channel_;
  std::unique_ptr<v1::RolloutService::StubInterface> stub_;
};

}  // namespace lockstep::testing
